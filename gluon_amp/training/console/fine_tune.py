"""`gluon-amp fine-tune`: fine-tune a pretrained classifier in float32, float16 or bfloat16."""

from typing import Optional, Sequence

from gluon_amp.training.runs import script
from gluon_amp.training.runs.recipe import read_fine_tuning


def main(arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp fine-tune") -> int:
    """Fine-tune; return the exit status."""
    return script.run(read_fine_tuning, arguments, prog)
