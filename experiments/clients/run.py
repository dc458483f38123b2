"""Runs a program of a client in a process and a folder of its own, and keeps the results."""

import contextlib
import datetime
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from experiments import ROOT
from experiments.clients.cases import Case, Family, apply
from gluon_amp.files import atomic
from gluon_amp.training.tables.machine import describe_cpu

PROGRAM = "program.py"
SHARED = Path(__file__).with_name("shared.py")  # what the programs import
LONGEST_ERROR = 160  # characters


class Job(NamedTuple):
    """A run: a case, the policy or ``float32``, and the seed."""

    family: Family
    case: Case
    policy: str
    seed: int

    @property
    def name(self) -> str:
        """The case with its family, as in ``gluoncv/ssd``."""
        return f"{self.family.name}/{self.case.name}"

    @property
    def program(self) -> str:
        """The text that runs."""
        return apply(self.case.edits, self.family.source(self.case).read_text(), self.policy)

    @property
    def key(self) -> Dict[str, Any]:
        """What a result belongs to; it does not depend on the version of gluon_amp."""
        files = [] if self.policy == "float32" else sorted(self.case.files.items())
        content = repr((self.program, SHARED.read_text(), files, self.family.versions))
        return {
            "case": self.name,
            "policy": self.policy,
            "seed": self.seed,
            "steps": self.case.steps,
            "digest": hashlib.sha256(content.encode()).hexdigest()[:16],
        }


def run(job: Job, python: Path, timeout: float = 300) -> Dict[str, Any]:
    """Run a job; return its record, which has the key and the losses, or an error in one line."""
    with tempfile.TemporaryDirectory(prefix="gluon_amp_clients_") as folder:
        write(job, python, Path(folder))
        environment = {
            **os.environ,
            "CASE": job.case.name,
            "SEED": str(job.seed),
            "STEPS": str(job.case.steps),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([folder, str(ROOT)]),
        }
        try:
            ended = execute([str(python), PROGRAM], timeout, cwd=folder, env=environment)
            result = parse(*ended, job.case.steps)
        except subprocess.TimeoutExpired:
            result = {"error": f"took more than {timeout:g} s"}
    today = datetime.date.today().isoformat()
    return {**job.key, "machine": describe_cpu(), "date": today, **result}


def execute(command: Sequence[str], timeout: float, **options: Any) -> Tuple[int, str, str]:
    """Run a command; return its status and what it printed. Its own processes end with it."""
    with subprocess.Popen(
        command,
        **options,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
            return process.returncode, output, errors
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def write(job: Job, python: Path, folder: Path) -> None:
    """Write the program, and copies of the packages that have edited files, to a folder."""
    (folder / PROGRAM).write_text(job.program)
    if job.policy == "float32":
        return
    for name, edits in job.case.files.items():
        package = folder / Path(name).parts[0]
        if not package.exists():
            # compiled files would stand for an edited one of the same second and size
            compiled = shutil.ignore_patterns("__pycache__")
            shutil.copytree(site_packages(python) / package.name, package, ignore=compiled)
        path = folder / name
        path.write_text(apply(edits, path.read_text(), job.policy))


def site_packages(python: Path) -> Path:
    """Return the folder of the packages of a virtual environment."""
    return next(Path(python).parents[1].glob("lib/python3.*/site-packages"))


def parse(status: int, output: str, errors: str, steps: int) -> Dict[str, Any]:
    """Return what a program printed last, or its error."""
    if status:
        lines = errors.strip().splitlines() or [f"exit status {status}"]
        # MXNet's errors end with a stack trace of C++
        named = [line for line in lines if "Error" in line.split(":")[0]] or lines
        return {"error": named[-1].strip()[:LONGEST_ERROR]}
    result = json.loads(output.strip().splitlines()[-1])
    losses = [float(f"{loss:.6g}") for loss in result["losses"]]
    if len(losses) != steps:
        return {"error": f"has {len(losses)} losses, expected {steps}"}
    return {"losses": losses, "step_seconds": result["step_seconds"], "extra": result["extra"]}


class Records:
    """Finished runs in one JSON file beside the table, each of which is written at once."""

    def __init__(self, path: Path):
        self._path = path
        self._runs: Dict[Tuple, Dict[str, Any]] = {}
        if path.exists():
            self._runs = {_key(run): run for run in json.loads(path.read_text())["runs"]}

    def find(self, job: Job) -> Optional[Dict[str, Any]]:
        """Return the record of a run, or None if there is none of this very program."""
        record = self._runs.get(_key(job.key))
        return record if record and record["digest"] == job.key["digest"] else None

    def add(self, record: Dict[str, Any]) -> None:
        """Add a record, or replace the one of the same run, and write the file."""
        self._runs[_key(record)] = record
        lines = ",\n".join(json.dumps(run) for _, run in sorted(self._runs.items()))
        atomic.write(self._path, f'{{"runs": [\n{lines}\n]}}\n'.encode())


def _key(record: Dict[str, Any]) -> Tuple:
    return tuple(record[name] for name in ("case", "policy", "seed", "steps"))
