"""What `scripts/prepare_caltech.py` and `scripts/pack_images.py` share."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any, Callable, Dict

from gluon_amp.command_line import Parser, natural, positive_int, whole
from gluon_amp.data.prepare.packing import LONGEST, Encoding
from gluon_amp.data.prepare.splitting import Split
from gluon_amp.data.source import DataError


def add_options(parser: Parser, per_class: str) -> None:
    """Add them to a parser.

    Parameters
    ----------
    parser : Parser
    per_class : str
        What is in brackets in the help of ``--train-per-class``.
    """
    add = parser.add_argument
    # fmt: off
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--train-per-class", type=positive_int, metavar="N",
        help=f"images of each class to train on {per_class}")
    one.add_argument("--train-images", type=positive_int, metavar="N",
        help="images to train on in all, from each class in proportion")
    add("--split-seed", type=natural, default=0, metavar="N",
        help="decides which, and the order of the training images (default: %(default)s)")
    add("--without", action="append", default=[], metavar="NAME",
        help="leave out this class, or this image as CLASS/FILE; may be repeated")
    add("--resize", type=whole(0, LONGEST), default=256, metavar="PIXELS",
        help="shorter side of the stored images, 0 keeps the files as they are "
             "(default: %(default)s)")
    add("--quality", type=whole(1, 100), default=95, metavar="N",
        help="of the JPEGs, 1 to 100 (default: %(default)s)")
    add("--num-workers", "-j", type=whole(1, 1024), metavar="N",
        help="threads that pack (default: one for each core)")
    add("--overwrite", action="store_true",
        help="replace what was packed with other options")
    # fmt: on


def arguments(options: argparse.Namespace) -> Dict[str, Any]:
    """Return them as the arguments that `prepare` and `pack_folders` share."""
    return {
        "split": Split(options.train_per_class, options.train_images, options.split_seed),
        "without": options.without,
        "encoding": Encoding(options.resize, options.quality),
        "workers": options.num_workers,
        "overwrite": options.overwrite,
    }


def run(name: str, pack: Callable[[], Dict[str, Any]], out: Path) -> int:
    """Pack, and tell the user what was packed, or in one sentence why not.

    Parameters
    ----------
    name : str
        The script's.
    pack : callable
        Returns the manifest.
    out : Path
        Where it packs.

    Returns
    -------
    int
        Status to exit with: 0, 2 where it cannot be done, 130 where it was interrupted.
    """
    try:
        manifest = pack()
    except DataError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # no space, no permission
        where = f"{error.filename}: " if error.filename else ""
        print(f"{name}: {where}{error.strerror or error}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the same command goes on from here.", file=sys.stderr)
        return 130
    counts = " and ".join(f"{count:,} {part}" for part, count in manifest["images"].items())
    print(f"{counts} images of {manifest['classes']} classes. To train on them:")
    print(f"python scripts/train_imagenet.py {_reading(out)}")
    return 0


def _reading(out: Path) -> str:
    """Return the options of train_imagenet.py that read what was packed."""
    if out.name == "rec":
        return f"--data-dir {shlex.quote(str(out.parent))} --use-rec"
    files = (shlex.quote(str(out / f"{part}.rec")) for part in ("train", "val"))
    return "--rec-train {} --rec-val {}".format(*files)
