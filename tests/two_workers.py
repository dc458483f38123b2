"""Two workers of one `dist_sync` kvstore, in processes of their own on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, List

from gluon_amp.training.workers.tasks import free_port
from tests import ROOT


def run_two_workers(folder: Path, source: str) -> List[Any]:
    """Run a script as two workers, and return what each wrote as JSON.

    The script's arguments are the worker's number and the path of its result.
    """
    env = {
        **os.environ,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port("127.0.0.1")),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_INTERFACE": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    script = folder / "worker.py"
    script.write_text(source)
    results = [folder / f"result{i}" for i in range(2)]
    # a server serves inside `import mxnet`, which needs gluon_amp's numpy aliases first
    commands = [("scheduler", ["-c", "import gluon_amp"]), ("server", ["-c", "import gluon_amp"])]
    commands += [("worker", [str(script), str(i), str(results[i])]) for i in range(2)]
    processes = [
        subprocess.Popen([sys.executable, *arguments], env={**env, "DMLC_ROLE": role})
        for role, arguments in commands
    ]
    try:
        for process in processes[2:]:
            assert process.wait(timeout=60) == 0
    finally:
        # a worker that fails leaves the others waiting forever
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads(result.read_text()) for result in results]
