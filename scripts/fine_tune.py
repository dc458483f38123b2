"""Fine-tune a pretrained classifier in float32, float16 or bfloat16.

    python scripts/fine_tune.py --model resnet50_v1 --dataset caltech101 --dtype float16

Without --dataset it needs no files: a network learns the handwritten digits 0 to 4, and is then
fine-tuned on 5 to 9.
"""

from typing import Optional, Sequence

from gluon_amp.distributed.workers import leave
from gluon_amp.recipes import script
from gluon_amp.recipes.recipe import read_fine_tuning


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Fine-tune; return the exit status."""
    return script.run(read_fine_tuning, arguments)


if __name__ == "__main__":
    leave(main)
