"""SIGTERM and Ctrl-C as the wish to save and leave."""

import os
import signal
import threading
from types import FrameType
from typing import Any, Dict, Optional

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RunInterruptedError(Exception):
    """The run was asked to leave; the message is one sentence that says what was saved."""

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.number = number

    @property
    def status(self) -> int:
        """The status of the process, as shells have it."""
        return 128 + self.number


NOTICE = (
    "signal {}: the run saves and ends after this batch or validation; once more ends it at once\n"
)


class Interruption:
    """Notes the first SIGTERM or SIGINT, within a with block; the second ends the process at once.

    Parameters
    ----------
    quiet : bool
        Print nothing when the signal comes.

    Attributes
    ----------
    number : int or None
        The signal that came.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.number: Optional[int] = None
        self._quiet = quiet
        self._process = os.getpid()
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # others may not take signals
            self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _frame: Optional[FrameType]) -> None:
        # Loading processes inherit this. Ctrl-C reaches them too, but only their parent ends them.
        if os.getpid() != self._process:
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        if self.number is not None:
            os._exit(128 + number)
        self.number = number
        if not self._quiet:
            os.write(2, NOTICE.format(number).encode())  # print is not safe in a signal handler

    def leave_after(self, done: str) -> None:
        """Raise `RunInterruptedError` if a signal came, now that what it interrupted is done.

        Parameters
        ----------
        done : str
            What is done, as a clause.
        """
        if self.number is not None:
            raise RunInterruptedError(self.number, f"interrupted by signal {self.number}: {done}.")
