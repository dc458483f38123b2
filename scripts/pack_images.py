"""Pack folders of images, such as ImageNet's, into RecordIO files for training.

python scripts/pack_images.py IMAGENET IMAGENET/rec
python scripts/train_imagenet.py --data-dir IMAGENET --use-rec
"""

import argparse
import sys
from typing import Optional, Sequence

from gluon_amp.command_line import Parser, path
from gluon_amp.data.prepare.commands import add_options, packing, run
from gluon_amp.data.prepare.pack_folders import pack_folders

NAME = "pack_images.py"


def read(command_line: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = Parser(prog=NAME, description=__doc__.splitlines()[0])
    parser.add_argument(
        "root",
        type=path,
        metavar="ROOT",
        help="folder with train/CLASS/* and val/CLASS/*, or with CLASS/* to be split",
    )
    parser.add_argument(
        "out",
        type=path,
        metavar="OUT",
        help="new folder, usually ROOT/rec; an existing one is replaced",
    )
    add_options(parser, "(default: ROOT is split already)")
    return parser.parse_args(command_line)


def main(command_line: Optional[Sequence[str]] = None) -> int:
    """Pack; return the status of the process."""
    options = read(command_line)
    return run(NAME, lambda: pack_folders(options.root, options.out, packing(options)), options.out)


if __name__ == "__main__":
    sys.exit(main())
