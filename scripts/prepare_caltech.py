"""Download Caltech-101 or Caltech-256 and pack it for training.

python scripts/prepare_caltech.py --dataset caltech256
python scripts/train_imagenet.py --data-dir ~/.mxnet/datasets/caltech256 --use-rec
"""

import sys

from gluon_amp.training.console.prepare_caltech import main

if __name__ == "__main__":
    sys.exit(main(prog="prepare_caltech.py"))
