"""Measure the input pipeline against MXNet's ImageRecordIter, on synthetic JPEGs.

python -m experiments.input_benchmark
python -m experiments.input_benchmark --output docs/benchmarks/input.md
"""

import argparse
import datetime
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Dict, List, Optional, Sequence

from gluon_amp.base.hardware import count_processors, cpu_flags, cpu_name
from gluon_amp.training.command_line import Parser, output_file, whole
from gluon_amp.training.data import DataError, Preprocessing, RecordFiles, open_records
from gluon_amp.training.data.imagenet_transforms import (
    AREA,
    ASPECT,
    INPUT_SIZE,
    JITTER,
    LIGHTING,
    MEAN,
    STD,
)
from gluon_amp.training.data.input_speed import Batches, images_per_second, training_batches
from gluon_amp.training.data.synthetic import write_synthetic_records
from gluon_amp.training.tables.machine import versions

import mxnet as mx

REPORT = """# Input: decoding and augmentation

How many training images the input pipeline loads in a second with nothing else running, compared
with MXNet's `mx.io.ImageRecordIter` with the same augmentation: random resized crop, flip, colour
jitter 0.4, lighting 0.1, normalisation. The readers take turns, with {workers} threads requested.
ImageRecordIter uses at most half of the cores minus one: here {threads}. So gluon_amp is also
measured with this number.

- Input: {images} JPEGs of {side}×{side} pixels, {kilobytes:.0f} kB each, in one record file in the
  page cache.
- Output: float32 batches of {batch_size} images of {pixels}×{pixels}; {batches} batches a round.

```
{command}
```

{machine}

| Images/s in round | gluon_amp, threads: {workers} | threads: {threads} | ImageRecordIter | Speed |
| ---: | ---: | ---: | ---: | ---: |
{rows}
| **median** | **{ours:.0f}** | **{same:.0f}** | **{theirs:.0f}** | **{ratio:.2f}** |

*Speed* is that of gluon_amp with {workers} threads relative to ImageRecordIter; higher is better.
"""


def parser() -> Parser:
    """Return the parser of the options."""
    result = Parser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for flag, default, maximum, text in (
        ("--images", 2048, None, "number of JPEGs"),
        ("--side", 256, 8192, "their height and width"),
        ("--pixels", 224, 8192, "height and width after augmentation"),
        ("--batch-size", 64, None, "images in a batch"),
        ("--batches", 24, None, "batches in a round"),
        ("--rounds", 5, None, "rounds, of which the median counts"),
        ("--num-workers", count_processors(), 1024, "threads of either reader"),
    ):
        result.add_argument(flag, type=whole(1, maximum), default=default, metavar="N", help=text)
    result.add_argument(
        "--output", type=output_file, metavar="FILE", help="also write the report to this file"
    )
    return result


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Write the images, measure, and print the report; return the status of the process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="gluon_amp_input_") as name:
            folder = Path(name)
            size = write_synthetic_records(folder, "train", options.images, 1, options.side)
            write_synthetic_records(folder, "val", 1, 1, options.side)
            paths = (folder / file for file in ("train.rec", "train.idx", "val.rec", "val.idx"))
            sizes = (options.batch_size, options.batches, options.rounds)
            files = RecordFiles(*paths)
            result = compare(files, *sizes, options.num_workers, options.pixels)
    except DataError as error:
        print(f"input_benchmark.py: {error}", file=sys.stderr)
        return 2
    command = " ".join(["python -m experiments.input_benchmark", *arguments])
    page = report(options, result, size, command)
    print(page)
    if options.output:
        options.output.write_text(page, encoding="utf-8")
    return 0


@dataclass(frozen=True)
class Comparison:
    """Images per second of each reader in each round."""

    gluon_amp: List[float]  # with the requested number of threads
    same_threads: List[float]  # gluon_amp with as many as ImageRecordIter uses
    image_record_iter: List[float]  # with the requested number of threads

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios; above 1 if gluon_amp is faster."""
        return median(a / b for a, b in zip(self.gluon_amp, self.image_record_iter))


def compare(
    files: RecordFiles,
    batch_size: int = 64,
    batches: int = 24,
    rounds: int = 5,
    num_workers: Optional[int] = None,
    size: int = INPUT_SIZE,
) -> Comparison:
    """Measure gluon_amp's input pipeline and `mx.io.ImageRecordIter` in turns, on the same records.

    Each reads the images for training; the results have `size` pixels in height and width. Every
    round reverses the order of the readers. They have `num_workers` threads, by default one for
    each processor.

    Raises
    ------
    DataError
        `open_records` raises it, or there are fewer images than in a batch.
    """
    source = open_records(files, preprocessing=Preprocessing(size))
    num_workers = num_workers or count_processors()
    if source.train_images < batch_size:
        raise DataError(
            f"{files.train} has {source.train_images} images, fewer than a batch of {batch_size}, "
            "which ImageRecordIter does not support: use a smaller batch."
        )
    threads = record_iter_threads(num_workers)
    readers = {
        "gluon_amp": lambda: training_batches(source, batch_size, num_workers),
        "same_threads": lambda: training_batches(source, batch_size, threads),
        "image_record_iter": lambda: record_iter_batches(files, batch_size, size, num_workers),
    }
    speeds: Dict[str, List[float]] = {name: [] for name in readers}
    for number in range(rounds):
        for name in sorted(readers, reverse=number % 2 == 1):
            speeds[name].append(images_per_second(readers[name](), batches))
    return Comparison(**speeds)


def record_iter_batches(
    files: RecordFiles, batch_size: int, size: int, num_workers: int
) -> Batches:
    """Yield batches of MXNet's `ImageRecordIter` endlessly, with GluonCV's augmentation.

    The reader overwrites the memory of a batch with later ones.

    Source of the settings: gluon-cv ``train_imagenet.py``, ``get_data_rec``, with the areas and
    aspect ratios of its folder transforms.
    """
    jitter = dict.fromkeys(["brightness", "contrast", "saturation"], JITTER)
    mean = {f"mean_{channel}": 255 * value for channel, value in zip("rgb", MEAN)}
    std = {f"std_{channel}": 255 * value for channel, value in zip("rgb", STD)}
    (min_area, max_area), (min_aspect, max_aspect) = AREA, ASPECT
    reader = mx.io.ImageRecordIter(
        path_imgrec=str(files.train),
        path_imgidx=str(files.train_idx),
        batch_size=batch_size,
        data_shape=(3, size, size),
        preprocess_threads=num_workers,
        shuffle=True,
        rand_mirror=True,
        random_resized_crop=True,
        min_random_area=min_area,
        max_random_area=max_area,
        min_aspect_ratio=min_aspect,
        max_aspect_ratio=max_aspect,
        pca_noise=LIGHTING,
        verbose=False,
        **jitter,
        **mean,
        **std,
    )
    while True:
        for batch in reader:
            yield batch.data[0], batch.label[0]
        reader.reset()


def record_iter_threads(requested: int) -> int:
    """Return how many threads ImageRecordIter uses if so many are requested.

    Source: MXNet 1.9.1, ``src/io/iter_image_recordio_2.cc``: at most half of the cores minus one.
    """
    return min(requested, max(count_processors() // 2 - 1, 1))


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


def machine() -> str:
    """Return a sentence about the processor, the date and the versions."""
    avx512 = ", AVX512" if "avx512f" in cpu_flags() else ""
    cpu = f"{count_processors()} processors, {cpu_name().replace('(R)', '')}{avx512}"
    return f"Machine: {cpu}, on {datetime.date.today().isoformat()}, with {versions()}."


if __name__ == "__main__":
    sys.exit(main())
