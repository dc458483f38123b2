"""Ctrl-C, SIGTERM and SIGHUP: the run finishes its batch, saves if it has a folder, and ends."""

import os
import signal
from typing import ContextManager, Optional

from gluon_amp.training.command_line import SIGNALS, handling_signals

NOTICE = "{}: finishing this batch; {} again to stop now\n"


def name_of(number: int) -> str:
    """Return what a user calls a signal: Ctrl-C for SIGINT."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


class RunInterruptedError(Exception):
    """A signal ended the run; the message is one sentence that says what was saved."""

    def __init__(self, number: int, result: str):
        super().__init__(f"interrupted by {name_of(number)}: {result}.")
        self.status = 128 + number  # the exit status of the process, by the convention of shells


class Interruption:
    """Records the first signal during `noticing`; the second one ends the process at once."""

    def __init__(self, quiet: bool = False) -> None:
        self.number: Optional[int] = None
        self._quiet = quiet

    def noticing(self) -> ContextManager[None]:
        """Return the context in which signals are noticed."""
        return handling_signals(SIGNALS, self._handle)

    def _handle(self, number: int, _frame: object) -> None:
        if self.number is not None:
            os._exit(128 + number)
        self.number = number
        if not self._quiet:  # print is not safe in a signal handler
            verb = "press" if number == signal.SIGINT else "send it"
            os.write(2, NOTICE.format(name_of(number), verb).encode())

    def leave_after(self, done: str) -> None:
        """Raise `RunInterruptedError` with the clause `done` if a signal has arrived."""
        if self.number is not None:
            raise RunInterruptedError(self.number, done)
