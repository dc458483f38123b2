"""Train an image classifier on ImageNet in float32, float16 or bfloat16.

    python scripts/train_imagenet.py --dtype float16 --batch-size 256

With no ImageNet at hand it trains a small network on scikit-learn's handwritten digits.
"""

from typing import Optional, Sequence

from gluon_amp.distributed.workers import leave
from gluon_amp.recipes import script
from gluon_amp.recipes.recipe import read


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Train; return the status of the process."""
    return script.run(read, arguments)


if __name__ == "__main__":
    leave(main)
