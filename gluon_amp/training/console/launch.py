"""`gluon-amp launch`: start a distributed run, here or on several machines."""

from typing import Optional, Sequence

from gluon_amp.training.command_line import status_of
from gluon_amp.training.workers.launcher import launch


def main(arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp launch") -> int:
    """Launch; return the exit status of the run, or 2 if the options are wrong."""
    return status_of(prog, lambda: launch(arguments, prog))
