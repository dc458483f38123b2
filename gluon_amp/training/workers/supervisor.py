"""Runs one command of a distributed run, of which nothing outlives the launcher.

The launcher holds the other end of standard input. A number on a line is a signal to pass on. The
end of the file ends the command and everything that it has started; it also comes when the launcher
is killed or the connection is lost. The launcher passes this file's text to ``python3 -c``, here or
on another machine, so it uses only the standard library.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any, Dict

PR_SET_PDEATHSIG = 1  # Linux, <sys/prctl.h>


def before_the_command() -> None:
    """Reset ignored signals to their defaults, and end this process if the supervisor is killed."""
    # A shell starts its background jobs with SIGINT ignored, and the command would inherit that.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill all processes of the command's group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def obey(process: "subprocess.Popen[bytes]") -> None:
    """Pass on signals until standard input ends; then end the command."""
    for line in sys.stdin:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, int(line))
    end(process)


def main(task: Dict[str, Any]) -> int:
    """Run the command of a `Task` and return its status, or 128 + N where signal N ended it."""
    env = dict(os.environ, **task["env"])
    # Otherwise each worker would start a thread on every core. This file cannot import gluon_amp.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    env.setdefault("OMP_NUM_THREADS", str(max(1, cores // task["neighbours"])))
    try:
        process = subprocess.Popen(
            task["command"],
            cwd=task["folder"],
            env=env,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=before_the_command,
        )
    except OSError as error:
        print(f"{error.filename}: {error.strerror}.", file=sys.stderr)
        return 127
    threading.Thread(target=obey, args=(process,), daemon=True).start()
    status = process.wait()
    end(process)  # data loading processes, for example
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    result = main(json.loads(sys.argv[1]))
    sys.stderr.flush()
    os._exit(result)  # the reading thread holds standard input
