"""SIGTERM and Ctrl-C: the run saves a checkpoint and exits."""

import os
import signal
import threading
from types import FrameType
from typing import Any, Dict, Optional

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RunInterruptedError(Exception):
    """A signal ended the run; the message is one sentence that says what was saved."""

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status of the process, by the convention of shells."""
        return 128 + self.number


NOTICE = (
    "signal {}: the run saves and ends after this batch or validation;\n"
    "a second signal ends it at once.\n"
)


class Interruption:
    """Records the first SIGTERM or SIGINT in a with block; the second ends the process at once."""

    def __init__(self, quiet: bool = False) -> None:
        self.number: Optional[int] = None
        self._quiet = quiet
        self._previous: Dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # only it may set handlers
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: Optional[FrameType]) -> None:
        if self.number is not None:
            os._exit(128 + number)
        self.number = number
        if not self._quiet:
            os.write(2, NOTICE.format(number).encode())  # print is not safe in a signal handler

    def leave_after(self, done: str) -> None:
        """Raise `RunInterruptedError` with the clause `done` if a signal has arrived."""
        if self.number is not None:
            raise RunInterruptedError(self.number, f"interrupted by signal {self.number}: {done}.")
