"""Measure the input pipeline against MXNet's ImageRecordIter, on JPEGs made for the purpose.

python -m experiments.input_benchmark
python -m experiments.input_benchmark --output docs/benchmarks/input.md
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Optional, Sequence

from gluon_amp.command_line import Parser, output_file, whole
from gluon_amp.data import DataError, RecordFiles
from gluon_amp.data.input_speed import Comparison, compare, record_iter_threads
from gluon_amp.data.synthetic import write_synthetic_records
from gluon_amp.hardware import count_processors, cpu_flags, cpu_name

REPORT = """# Input: decoding and augmentation

How many training images the input pipeline delivers in a second with nothing else running, beside
MXNet's own `mx.io.ImageRecordIter` with the same augmentation: random resized crop, flip, colour
jitter 0.4, lighting 0.1, normalisation. They are measured in turn, asked for {workers} threads.
Whatever it is asked for, ImageRecordIter takes at most half of the cores less one: here {threads}.
So gluon_amp is measured with that many, too.

- Input: {images} JPEGs of {side}×{side} pixels, {kilobytes:.0f} kB each, in one record file in the
  page cache.
- Output: float32 batches of {batch_size} images of {pixels}×{pixels}; {batches} batches a round.

```
{command}
```

{machine}

| Images/s in round | gluon_amp, threads: {workers} | threads: {threads} | ImageRecordIter | Ratio |
| ---: | ---: | ---: | ---: | ---: |
{rows}
| **median** | **{ours:.0f}** | **{same:.0f}** | **{theirs:.0f}** | **{ratio:.2f}** |

The ratio is of the first column to the third.
"""


def parser() -> Parser:
    """Return the parser of the options."""
    options = Parser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for flag, default, most, what in (
        ("--images", 2048, None, "JPEGs to make"),
        ("--side", 256, 8192, "their height and width"),
        ("--pixels", 224, 8192, "height and width after augmentation"),
        ("--batch-size", 64, None, "images in a batch"),
        ("--batches", 24, None, "batches in a round"),
        ("--rounds", 5, None, "rounds; the median counts"),
        ("--num-workers", count_processors(), 1024, "threads of either reader"),
    ):
        options.add_argument(flag, type=whole(1, most), default=default, metavar="N", help=what)
    options.add_argument(
        "--output", type=output_file, metavar="FILE", help="write the report here, too"
    )
    return options


def machine() -> str:
    """Describe the processor in one line."""
    wide = ", AVX512" if "avx512f" in cpu_flags() else ""
    return f"Machine: {count_processors()} processors, {cpu_name().replace('(R)', '')}{wide}."


def report(options: argparse.Namespace, result: Comparison, size: float, command: str) -> str:
    """Return the page with the figures."""
    speeds = zip(result.gluon_amp, result.same_threads, result.image_record_iter)
    rows = (
        f"| {number} | {ours:.0f} | {same:.0f} | {theirs:.0f} | {ours / theirs:.2f} |"
        for number, (ours, same, theirs) in enumerate(speeds, 1)
    )
    return REPORT.format(
        **vars(options),
        workers=options.num_workers,
        threads=record_iter_threads(options.num_workers),
        kilobytes=size / 1000,
        command=command,
        machine=machine(),
        rows="\n".join(rows),
        ours=median(result.gluon_amp),
        same=median(result.same_threads),
        theirs=median(result.image_record_iter),
        ratio=result.ratio,
    )


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Make the images, measure, and print the report."""
    options = parser().parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        with tempfile.TemporaryDirectory(prefix="gluon_amp_input_") as name:
            folder = Path(name)
            size = write_synthetic_records(folder, "train", options.images, 1, options.side)
            write_synthetic_records(folder, "val", 1, 1, options.side)
            paths = (folder / file for file in ("train.rec", "train.idx", "val.rec", "val.idx"))
            result = compare(
                RecordFiles(*paths),
                options.batch_size,
                options.batches,
                options.rounds,
                options.num_workers,
                options.pixels,
            )
    except DataError as error:
        print(f"input_benchmark.py: {error}", file=sys.stderr)
        return 2
    command = " ".join(["python -m experiments.input_benchmark", *map(str, given)])
    page = report(options, result, size, command)
    print(page)
    if options.output:
        options.output.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
