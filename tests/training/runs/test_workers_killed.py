"""Workers, servers and schedulers that are killed in mid-epoch, and runs that go on from there."""

import re
import subprocess
import sys
import time

import pytest

from gluon_amp.training.workers.tasks import free_port
from tests import ROOT
from tests.training.runs.killing import OPTIONS, SCRIPT, checkpoints, finish, run
from tests.training.runs.scripts import environment

LAUNCH = [sys.executable, str(ROOT / "scripts" / "launch.py")]
BOUND = 15  # seconds from a death to the end of the launcher, which gives the others six


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(SCRIPT)
    return path


def launcher(workers):
    return [*LAUNCH, "-n", str(workers), "-s", "2", "--"]


# Who dies, seen by whom, after which batch of which epoch; and its name in the launcher's sentence.
DEATHS = {
    "worker 1 0 1": "worker 1",
    "worker 0 0 3": "worker 0",
    "server 0 1 0": r"server \d",
    "scheduler 0 1 2": "scheduler",
}


def pytest_generate_tests(metafunc):
    """Try two workers, and every death, with `--kills 2` or more."""
    few = metafunc.config.getoption("--kills") < 2
    if "workers" in metafunc.fixturenames:
        metafunc.parametrize("workers", [3] if few else [2, 3])
        metafunc.parametrize("deaths", [["worker 1 0 1", "scheduler 0 1 2"] if few else [*DEATHS]])
    if "death" in metafunc.fixturenames:
        metafunc.parametrize("death", ["worker 0 1 2", "server 0 1 2"] if few else BY_HAND)


@pytest.mark.slow
def test_a_death_ends_the_run_and_the_next_run_goes_on(script, tmp_path, workers, deaths):
    launch = launcher(workers)
    options = ["--deterministic"] if workers > 2 else ["--dtype", "float32"]
    finish(script, tmp_path / "whole", launch, *options)
    whole = checkpoints(tmp_path / "whole")
    assert len(whole) == 6
    for death in deaths:
        done = run(script, tmp_path / "killed", launch, *options, dies=death)
        assert done.returncode == 137
        (line,) = (line for line in done.stderr.splitlines() if line.startswith("launch.py"))
        sentence = (
            rf"launch.py: {DEATHS[death]} ended with status 137 \(SIGKILL\); the others are ended\."
        )
        assert re.fullmatch(sentence, line)
        assert done.seconds < BOUND
    finish(script, tmp_path / "killed", launch, *options)
    assert checkpoints(tmp_path / "killed") == whole


class Started:
    """A scheduler, a server and workers that were started without a launcher."""

    def __init__(self, script, folder, workers, *options, **variables):
        folder.mkdir(exist_ok=True)
        self.died = folder / "died"
        env = environment(
            DMLC_PS_ROOT_URI="127.0.0.1",
            DMLC_PS_ROOT_PORT=str(free_port("127.0.0.1")),
            DMLC_NODE_HOST="127.0.0.1",
            DMLC_NUM_WORKER=str(workers),
            DMLC_NUM_SERVER="1",
            OMP_NUM_THREADS="1",
            DIED=str(self.died),
            **variables,
        )
        resume = ["--resume", "auto"] if list(folder.glob("*.ckpt")) else []
        options = [*OPTIONS, *options, *resume, "--save-dir", str(folder)]
        self._errors = [folder / f"error{number}" for number in range(workers)]
        self._all = [
            self._start([script, *options], {**env, "DMLC_ROLE": role}, folder / role)
            for role in ("scheduler", "server")
        ]
        self.workers = [
            self._start([script, *options], {**env, "DMLC_ROLE": "worker", "NUMBER": str(n)}, path)
            for n, path in enumerate(self._errors)
        ]
        self._all += self.workers

    @staticmethod
    def _start(command, env, error):
        with open(error, "w") as errors:
            return subprocess.Popen(
                [sys.executable, *map(str, command)],
                env=env,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def until_ended(self, number, seconds=150):
        """Wait until so many workers have ended; return the seconds since the death, if any."""
        limit = time.monotonic() + seconds
        while sum(worker.poll() is not None for worker in self.workers) < number:
            assert time.monotonic() < limit, self.sentences()
            time.sleep(0.1)
        return time.time() - float(self.died.read_text()) if self.died.exists() else None

    def sentences(self):
        lines = (line for path in self._errors for line in path.read_text().splitlines())
        return [line for line in lines if line.startswith("train.py: ")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._all:
            process.kill()
            process.wait()


ENDED = r"train.py: worker {}.*has ended, and the others cannot go on: start the whole run again"
# Who dies, with how many workers and what --worker-timeout; the sentence; and in how many seconds
# the others end.
BY_HAND = {
    "worker 1 1 2": (3, "60", ENDED.format("1 "), 12),
    "worker 0 1 2": (2, "60", ENDED.format("0, the first one,"), 12),
    "server 0 1 2": (2, "4", "train.py: all workers are alive and wait .* so a server", 60),
    "scheduler 1 1 2": (2, "4", "train.py: the run is over; MXNet's scheduler or a server did", 90),
    "stopped 1 1 2": (2, "4", "train.py: worker 1 .*has not answered for 4 s, and the others", 12),
}


@pytest.mark.slow
def test_without_a_launcher_a_death_ends_the_others(script, tmp_path, death):
    count, seconds, sentence, bound = BY_HAND[death]
    with Started(script, tmp_path, count, "--worker-timeout", seconds, DIES=death) as run:
        others = count if death.startswith(("server", "scheduler")) else count - 1
        took = run.until_ended(others + death.startswith("worker"))
        assert took < bound
        assert len(run.sentences()) == others
        assert all(re.match(sentence, said) for said in run.sentences()), run.sentences()
        status = 0 if death.startswith("scheduler") else 1
        assert [worker.returncode for worker in run.workers].count(status) == others


@pytest.mark.slow
def test_a_slow_step_or_validation_is_no_death(script, tmp_path):
    with Started(script, tmp_path, 2, "--worker-timeout", "2", SLOW="7") as run:
        run.until_ended(2)
        assert [worker.returncode for worker in run.workers] == [0, 0], run.sentences()
