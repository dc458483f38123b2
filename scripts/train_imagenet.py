"""Train an image classifier on ImageNet in float32, float16 or bfloat16.

    python scripts/train_imagenet.py --dtype float16 --batch-size 256

Without ImageNet it trains a small network on the handwritten digits of scikit-learn.
"""

from functools import partial

from gluon_amp.training.console.train import main
from gluon_amp.training.workers.group import leave

if __name__ == "__main__":
    leave(partial(main, prog="train_imagenet.py"))
