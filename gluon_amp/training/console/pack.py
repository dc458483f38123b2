"""`gluon-amp pack`: pack folders of images into RecordIO files for training."""

from typing import Optional, Sequence

from gluon_amp.training.command_line import Parser, path
from gluon_amp.training.data.prepare.commands import add_options, packing, run
from gluon_amp.training.data.prepare.pack_folders import pack_folders

DESCRIPTION = "Pack folders of images, such as ImageNet's, into RecordIO files for training."


def main(arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp pack") -> int:
    """Pack; return the exit status."""
    parser = Parser(prog=prog, description=DESCRIPTION)
    images = "folder with train/CLASS/* and val/CLASS/*, or with CLASS/* to be split"
    parser.add("root", images, type=path, metavar="ROOT")
    packed = "new folder, usually ROOT/rec; an existing one is replaced"
    parser.add("out", packed, type=path, metavar="OUT")
    add_options(parser, "(default: ROOT is split already)")
    options = parser.parse_args(arguments)
    return run(prog, lambda: pack_folders(options.root, options.out, packing(options)), options.out)
