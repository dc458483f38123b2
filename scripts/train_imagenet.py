"""Train an image classifier on ImageNet in float32, float16 or bfloat16.

    python scripts/train_imagenet.py --dtype float16 --batch-size 256

Without ImageNet it trains a small network on the handwritten digits of scikit-learn.
"""

from typing import Optional, Sequence

from gluon_amp.distributed.workers import leave
from gluon_amp.recipes import script
from gluon_amp.recipes.recipe import read


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Train; return the exit status."""
    return script.run(read, arguments)


if __name__ == "__main__":
    leave(main)
