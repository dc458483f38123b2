"""Runs a case on request, in a process whose arguments are the case and the end of a pipe.

It imports nothing but the standard library.
"""

import contextlib
import json
import sys
import time
from multiprocessing.connection import Connection
from typing import Any, Callable, Dict, Tuple

Built = Tuple[Callable[[], object], Callable[[], Dict[str, int]]]  # what runs a case, and counts


def serve(build: Callable[[Dict[str, Any]], Built], wait: Callable[[], object]) -> None:
    """Build a case, then run it on request; `wait` waits until all is computed.

    The process first sends None when it is ready. It replies to a number n with the seconds of n
    runs. It replies to None with its own figures, and ends. If it cannot run the case, it sends the
    reason as a string.
    """
    case, connection = json.loads(sys.argv[1]), Connection(int(sys.argv[2]))

    def timed() -> float:
        wait()
        start = time.perf_counter()
        run()
        wait()
        return time.perf_counter() - start

    try:
        run, count = build(case)
        connection.send(None)
        for number in iter(connection.recv, None):
            connection.send([timed() for _ in range(number)])
        with open("/proc/self/status") as lines:
            peak = next(line for line in lines if line.startswith("VmHWM"))
        connection.send({"mebibytes": int(peak.split()[1]) / 1024, **count()})
    except (EOFError, ConnectionError, KeyboardInterrupt):
        pass  # the parent has ended, and has reported why
    except Exception as error:  # whatever it is, the parent reports it
        lines = str(error).strip().splitlines() or [type(error).__name__]
        with contextlib.suppress(ConnectionError):  # another case may have ended it
            connection.send(f"{case['label']}: {lines[0]}")
