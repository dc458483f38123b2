"""What tests of several files ask for by name: a home without data, and one trained run."""

import contextlib
import io
import resource
import signal
from types import SimpleNamespace

import pytest

from gluon_amp.training.console import train
from tests.idx_files import write_fashion

WORKERS = ("DMLC_ROLE", "DMLC_NUM_WORKER", "DMLC_WORKER_ID", "HOROVOD_SIZE")
# Two epochs of four batches of the digits in float16, without an option that says where files are.
RUN = (
    "--dtype float16 --batch-size 32 --max-batches 4 --epochs 2 --warmup-epochs 0 --lr 0.01 "
    "--lr-mode linear --log-interval 1 --seed 7"
).split()


@pytest.fixture(autouse=True)
def no_imagenet(monkeypatch, tmp_path):
    """Hide an ImageNet, and the workers, that this machine may have."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in WORKERS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def fashion(tmp_path_factory):
    """Options of a short run of a small network, on 40 training and 23 validation images."""
    folder = write_fashion(tmp_path_factory.mktemp("fashion"), train=40, val=23)
    options = "--dataset fashion-mnist --batch-size 8 --epochs 1 --warmup-epochs 0 --log-interval 1"
    return [*options.split(), "--data-dir", str(folder)]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder, the options and the output of one run that writes all that a run can write."""
    folder = tmp_path_factory.mktemp("trained")
    names = "save_dir summary_json log_json logging_file tensorboard plot export".split()
    files = {name: folder / name for name in names}
    files["plot"] = folder / "plot.png"
    options = [text for name in names for text in (f"--{name.replace('_', '-')}", str(files[name]))]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setenv("HOME", str(folder / "home"))
        for name in WORKERS:
            patch.delenv(name, raising=False)
        more = "--save-batches 2 --keep 99 --confusions 3".split()
        assert train.main([*RUN, *more, *options]) == 0
    return SimpleNamespace(folder=folder, out=out.getvalue(), options=RUN, **files)


@pytest.fixture
def refused(capsys):
    """A function that runs a command that fails; it returns its one sentence."""

    def sentence(main, words, status=2):
        assert main([*map(str, words)]) == status
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "Traceback" not in error
        return error

    return sentence


@pytest.fixture
def small_disk():
    """A context in which no file can grow beyond a number of bytes, as on a full disk."""

    @contextlib.contextmanager
    def limited(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)

    return limited
