"""The common part of the commands `gluon-amp prepare-caltech` and `gluon-amp pack`."""

import argparse
import shlex
from pathlib import Path
from typing import Any, Callable, Dict

from gluon_amp.base.messages import UsageError
from gluon_amp.files.atomic import InUseError
from gluon_amp.training import command_line as read
from gluon_amp.training.command_line import Parser, adding_to, status_of
from gluon_amp.training.data.prepare.packing import LONGEST, Encoding, Packing
from gluon_amp.training.data.splitting import Split


def add_options(parser: Parser, per_class: str) -> None:
    """Add the shared options to a parser; `per_class` ends the help of ``--train-per-class``."""
    add = adding_to(parser.add_mutually_exclusive_group())
    add("--train-per-class", f"images of each class for training {per_class}", read.COUNT)
    add("--train-images", "images for training in total, in proportion from each class", read.COUNT)
    add = parser.add
    seed = "determines the training images and their order (default: %(default)s)"
    add("--split-seed", seed, read.NUMBER, default=0)
    without = "leave out this class, or this image as CLASS/FILE; may be repeated"
    add("--without", without, action="append", default=[], metavar="NAME")
    side = "shorter side of the stored images; 0 keeps the files unchanged (default: %(default)s)"
    add("--resize", side, type=read.whole(0, LONGEST), default=256, metavar="PIXELS")
    quality = "of the JPEGs, 1 to 100 (default: %(default)s)"
    add("--quality", quality, type=read.whole(1, 100), default=95, metavar="N")
    threads = "threads that pack (default: one for each processor)"
    add("--num-workers -j", threads, type=read.whole(1, 1024), metavar="N")
    add("--overwrite", "replace what was packed with other options", read.SWITCH)


def packing(options: argparse.Namespace) -> Packing:
    """Return the shared options that were parsed."""
    return Packing(
        split=Split(options.train_per_class, options.train_images, options.split_seed),
        without=options.without,
        encoding=Encoding(options.resize, options.quality),
        workers=options.num_workers,
        overwrite=options.overwrite,
    )


def run(prog: str, pack: Callable[[], Dict[str, Any]], out: Path) -> int:
    """Call `pack`, and print how to train on the result; return the status of the process."""

    def work() -> None:
        try:
            manifest = pack()
        except InUseError as error:
            raise UsageError(f"{error}: wait for it.") from None
        except KeyboardInterrupt:
            again = "interrupted; run the same command again to resume."
            raise KeyboardInterrupt(again) from None
        counts = " and ".join(f"{count:,} {part}" for part, count in manifest["images"].items())
        print(f"{counts} images of {manifest['classes']} classes. To train on them:")
        print(f"gluon-amp train {_data_options(out)}")

    return status_of(prog, work)


def _data_options(out: Path) -> str:
    """Return the options of `gluon-amp train` that read the packed images."""
    if out.name == "rec":
        return f"--data-dir {shlex.quote(str(out.parent))} --use-rec"
    files = (shlex.quote(str(out / f"{part}.rec")) for part in ("train", "val"))
    return "--rec-train {} --rec-val {}".format(*files)
