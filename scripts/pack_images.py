"""Pack folders of images, such as ImageNet's, into RecordIO files for training.

python scripts/pack_images.py IMAGENET IMAGENET/rec
python scripts/train_imagenet.py --data-dir IMAGENET --use-rec
"""

import sys

from gluon_amp.training.console.pack import main

if __name__ == "__main__":
    sys.exit(main(prog="pack_images.py"))
