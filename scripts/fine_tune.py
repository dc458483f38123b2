"""Fine-tune a pretrained classifier in float32, float16 or bfloat16.

    python scripts/fine_tune.py --model resnet50_v1 --dataset caltech101 --dtype float16

Without --dataset it needs no files: a network learns the handwritten digits 0 to 4, and is then
fine-tuned on 5 to 9.
"""

from functools import partial

from gluon_amp.training.console.fine_tune import main
from gluon_amp.training.workers.group import leave

if __name__ == "__main__":
    leave(partial(main, prog="fine_tune.py"))
