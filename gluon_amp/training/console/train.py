"""`gluon-amp train`: train an image classifier in float32, float16 or bfloat16."""

from typing import Optional, Sequence

from gluon_amp.training.runs import script
from gluon_amp.training.runs.recipe import read


def main(arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp train") -> int:
    """Train; return the exit status."""
    return script.run(read, arguments, prog)
