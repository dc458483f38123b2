"""`gluon-amp prepare-caltech`: download Caltech-101 or Caltech-256 and pack it for training."""

from pathlib import Path
from typing import Optional, Sequence

from gluon_amp.training.command_line import FOLDER, OUTPUT, Parser, adding_to
from gluon_amp.training.data.prepare.caltech import DATASETS, PACKED, prepare
from gluon_amp.training.data.prepare.commands import add_options, packing, run

DESCRIPTION = """Download Caltech-101 or Caltech-256 and pack it for training. Steps that are
complete are skipped, so an interrupted run can be resumed."""


def main(arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp prepare-caltech") -> int:
    """Prepare the data set; return the exit status."""
    parser = Parser(prog=prog, description=DESCRIPTION)
    parser.add_argument("--dataset", choices=tuple(DATASETS), required=True)
    folder = (
        "folder for the archive, its images, and the packed images in DIR/rec "
        "(default: ~/.mxnet/datasets/DATASET)"
    )
    parser.add("--root", folder, FOLDER)
    parser.add("--archive", "an archive that was downloaded already, with any name", OUTPUT)
    add = adding_to(parser.add_mutually_exclusive_group())
    clutter = {"dest": "clutter", "default": None}
    counted = "count clutter as a class (default for caltech256: 257 classes)"
    add("--include-clutter", counted, clutter, action="store_true")
    left_out = "leave out clutter (default for caltech101: 101 classes)"
    add("--no-clutter", left_out, clutter, action="store_false")
    numbers = ", ".join(f"{data.train_per_class} for {name}" for name, data in DATASETS.items())
    add_options(parser, f"(default: {numbers})")
    options = parser.parse_args(arguments)
    root = (options.root or Path("~/.mxnet/datasets") / options.dataset).expanduser()
    return run(
        prog,
        lambda: prepare(
            DATASETS[options.dataset],
            root,
            packing(options),
            clutter=options.clutter,
            archive=options.archive,
        ),
        root / PACKED,
    )
