"""Train an image classifier on ImageNet in float32, float16 or bfloat16.

    python scripts/train_imagenet.py --dtype float16 --batch-size 256

With no ImageNet at hand it trains a small network on scikit-learn's handwritten digits.
"""

import sys
from typing import Optional, Sequence

from gluon_amp.data import DataError
from gluon_amp.training.loop import TrainingError
from gluon_amp.training.options import UsageError
from gluon_amp.training.recipe import read
from gluon_amp.training.run import train


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Train; return 0, or 2 where the options cannot be followed, or 1 where training failed."""
    try:
        recipe, given = read(arguments)
        print(f"\n{train(recipe, given)}")
    except (UsageError, DataError) as error:
        print(f"train_imagenet.py: {error}", file=sys.stderr)
        return 2
    except (TrainingError, FloatingPointError) as error:
        print(f"train_imagenet.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
