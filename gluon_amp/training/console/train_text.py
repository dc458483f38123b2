"""`gluon-amp train-text`: train a character language model."""

from typing import Optional, Sequence

from gluon_amp.training.runs import script
from gluon_amp.training.runs.language.recipe import read
from gluon_amp.training.runs.language.run import train


def main(arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp train-text") -> int:
    """Train; return the exit status."""
    return script.run(read, arguments, prog, train)
