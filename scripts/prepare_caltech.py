"""Download Caltech-101 or Caltech-256 and pack it for training.

    python scripts/prepare_caltech.py --dataset caltech256
    python scripts/train_imagenet.py --data-dir ~/.mxnet/datasets/caltech256 --use-rec

What is done already is not done again, so an interrupted run goes on where it stopped.
"""

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence

from gluon_amp.command_line import Parser, path
from gluon_amp.data.prepare.caltech import DATASETS, PACKED, prepare
from gluon_amp.data.prepare.commands import add_options, arguments, run

NAME = "prepare_caltech.py"


def read(given: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog=NAME, description=__doc__.splitlines()[0])
    add = parser.add_argument
    # fmt: off
    add("--dataset", choices=tuple(DATASETS), required=True)
    add("--root", type=path, metavar="DIR",
        help="gets the archive, its images, and what is packed in DIR/rec "
             "(default: ~/.mxnet/datasets/DATASET)")
    add("--archive", type=path, metavar="FILE",
        help="an archive that was downloaded already, whatever its name")
    clutter = parser.add_mutually_exclusive_group()
    clutter.add_argument("--include-clutter", dest="clutter", action="store_true", default=None,
        help="count clutter as a class (default for caltech256: 257 classes)")
    clutter.add_argument("--no-clutter", dest="clutter", action="store_false",
        help="leave it out (default for caltech101: 101 classes)")
    # fmt: on
    numbers = ", ".join(f"{data.train_per_class} for {name}" for name, data in DATASETS.items())
    add_options(parser, f"(default: {numbers})")
    return parser.parse_args(given)


def main(given: Optional[Sequence[str]] = None) -> int:
    """Prepare; return 0, 2 where it cannot be done, or 130 where it was interrupted."""
    options = read(given)
    root = (options.root or Path("~/.mxnet/datasets") / options.dataset).expanduser()
    return run(
        NAME,
        lambda: prepare(
            DATASETS[options.dataset],
            root,
            clutter=options.clutter,
            archive=options.archive,
            **arguments(options),
        ),
        root / PACKED,
    )


if __name__ == "__main__":
    sys.exit(main())
