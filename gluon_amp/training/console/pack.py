"""`gluon-amp pack`: pack folders of images into RecordIO files for training."""

import argparse
from typing import Optional, Sequence

from gluon_amp.training.command_line import Parser, path
from gluon_amp.training.data.prepare.commands import add_options, packing, run
from gluon_amp.training.data.prepare.pack_folders import pack_folders

DESCRIPTION = "Pack folders of images, such as ImageNet's, into RecordIO files for training."


def read(arguments: Optional[Sequence[str]], prog: str) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = Parser(prog=prog, description=DESCRIPTION)
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
    return parser.parse_args(arguments)


def main(arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp pack") -> int:
    """Pack; return the exit status."""
    options = read(arguments, prog)
    return run(prog, lambda: pack_folders(options.root, options.out, packing(options)), options.out)
