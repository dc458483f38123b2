"""Pack folders of images, as ImageNet's, into RecordIO files for training.

python scripts/pack_images.py IMAGENET IMAGENET/rec
python scripts/train_imagenet.py --data-dir IMAGENET --use-rec
"""

import argparse
import sys
from typing import Optional, Sequence

from gluon_amp.command_line import Parser, path
from gluon_amp.data.prepare.commands import add_options, arguments, run
from gluon_amp.data.prepare.pack_folders import pack_folders

NAME = "pack_images.py"


def read(given: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog=NAME, description=__doc__.splitlines()[0])
    add = parser.add_argument
    # fmt: off
    add("root", type=path, metavar="ROOT",
        help="holds train/CLASS/* and val/CLASS/*, or CLASS/* to be divided")
    add("out", type=path, metavar="OUT",
        help="folder to write, as a rule ROOT/rec; its content is replaced as a whole")
    # fmt: on
    add_options(parser, "(default: ROOT is divided already)")
    return parser.parse_args(given)


def main(given: Optional[Sequence[str]] = None) -> int:
    """Pack; return 0, 2 where it cannot be done, or 130 where it was interrupted."""
    options = read(given)
    packing = arguments(options)
    return run(NAME, lambda: pack_folders(options.root, options.out, **packing), options.out)


if __name__ == "__main__":
    sys.exit(main())
