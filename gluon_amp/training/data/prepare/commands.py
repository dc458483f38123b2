"""The common part of the commands `gluon-amp prepare-caltech` and `gluon-amp pack`."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any, Callable, Dict

from gluon_amp.files.atomic import InUseError
from gluon_amp.training.command_line import Parser, natural, positive_int, whole
from gluon_amp.training.data.prepare.packing import LONGEST, Encoding, Packing
from gluon_amp.training.data.prepare.splitting import Split
from gluon_amp.training.data.source import DataError


def add_options(parser: Parser, per_class: str) -> None:
    """Add the shared options to a parser; `per_class` ends the help of ``--train-per-class``."""
    add = parser.add_argument
    number = parser.add_mutually_exclusive_group()
    number.add_argument(
        "--train-per-class",
        type=positive_int,
        metavar="N",
        help=f"images of each class for training {per_class}",
    )
    number.add_argument(
        "--train-images",
        type=positive_int,
        metavar="N",
        help="images for training in total, in proportion from each class",
    )
    add(
        "--split-seed",
        type=natural,
        default=0,
        metavar="N",
        help="determines the training images and their order (default: %(default)s)",
    )
    add(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out this class, or this image as CLASS/FILE; may be repeated",
    )
    add(
        "--resize",
        type=whole(0, LONGEST),
        default=256,
        metavar="PIXELS",
        help="shorter side of the stored images; 0 keeps the files unchanged "
        "(default: %(default)s)",
    )
    add(
        "--quality",
        type=whole(1, 100),
        default=95,
        metavar="N",
        help="of the JPEGs, 1 to 100 (default: %(default)s)",
    )
    add(
        "--num-workers",
        "-j",
        type=whole(1, 1024),
        metavar="N",
        help="threads that pack (default: one for each processor)",
    )
    add("--overwrite", action="store_true", help="replace what was packed with other options")


def packing(options: argparse.Namespace) -> Packing:
    """Return the shared options that were parsed."""
    return Packing(
        split=Split(options.train_per_class, options.train_images, options.split_seed),
        without=options.without,
        encoding=Encoding(options.resize, options.quality),
        workers=options.num_workers,
        overwrite=options.overwrite,
    )


def run(name: str, pack: Callable[[], Dict[str, Any]], out: Path) -> int:
    """Pack, and print how to train on the result, or in one sentence why packing failed.

    Parameters
    ----------
    name : str
        The program's name, for messages.
    pack : callable
        Packs into `out`, and returns the manifest.

    Returns
    -------
    int
        Status of the process: 0, 2 after an error, 130 after an interruption.
    """
    try:
        manifest = pack()
    except DataError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except InUseError as error:
        print(f"{name}: {error}: wait for it.", file=sys.stderr)
        return 2
    except OSError as error:  # no space, no permission
        file = f"{error.filename}: " if error.filename else ""
        print(f"{name}: {file}{error.strerror or error}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted; run the same command again to resume.", file=sys.stderr)
        return 130
    counts = " and ".join(f"{count:,} {part}" for part, count in manifest["images"].items())
    print(f"{counts} images of {manifest['classes']} classes. To train on them:")
    print(f"gluon-amp train {_data_options(out)}")
    return 0


def _data_options(out: Path) -> str:
    """Return the options of `gluon-amp train` that read the packed images."""
    if out.name == "rec":
        return f"--data-dir {shlex.quote(str(out.parent))} --use-rec"
    files = (shlex.quote(str(out / f"{part}.rec")) for part in ("train", "val"))
    return "--rec-train {} --rec-val {}".format(*files)
