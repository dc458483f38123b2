"""Measure the input pipeline against MXNet's ImageRecordIter, on synthetic JPEGs.

python -m experiments.input_benchmark --output docs/benchmarks/input.md
"""

import datetime
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Dict, List, Optional, Sequence

import numpy as np

from experiments import pages
from gluon_amp.base.hardware import count_processors, cpu_flags, cpu_name
from gluon_amp.training.command_line import Parser, output_file, positive_int, status_of
from gluon_amp.training.data import Preprocessing, RecordFiles, open_records
from gluon_amp.training.data.decode import cv2, require_opencv
from gluon_amp.training.data.imagenet_transforms import AREA, ASPECT, JITTER, LIGHTING, MEAN, STD
from gluon_amp.training.runs.speed import Batches, images_per_second, training_batches
from gluon_amp.training.tables.machine import versions

import mxnet as mx
from mxnet import recordio

IMAGES, SIDE = 2048, 256  # the number of JPEGs, and their height and width
PIXELS = 224  # after augmentation
BATCH, BATCHES = 64, 24  # images in a batch, and batches in a round
THREADS = count_processors()  # that either reader is asked to use


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and run it; return the status of the process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = Parser(description=__doc__.splitlines()[0])
    rounds = "rounds, of which the median counts (default: %(default)s)"
    parser.add_argument("--rounds", type=positive_int, default=5, metavar="N", help=rounds)
    output = "also write the page to this file, whose name ends in .md"
    parser.add_argument("--output", type=output_file, metavar="FILE", help=output)
    options = parser.parse_args(arguments)
    command = " ".join(["python -m experiments.input_benchmark", *arguments])
    return status_of("input_benchmark.py", lambda: run(options.rounds, options.output, command))


def run(rounds: int, output: Optional[Path], command: str) -> None:
    """Write the images, measure, print the parts of the page, and write the page."""
    with tempfile.TemporaryDirectory(prefix="gluon_amp_input_") as name:
        folder = Path(name)
        size = write_synthetic_records(folder, "train", IMAGES, 1, SIDE)
        write_synthetic_records(folder, "val", 1, 1, SIDE)
        paths = (folder / file for file in ("train.rec", "train.idx", "val.rec", "val.idx"))
        page = parts(compare(RecordFiles(*paths), rounds), size, command)
    print("\n\n".join(page.values()))
    if output:
        pages.write(output.with_suffix(""), "benchmarks/input.md", page)


def write_synthetic_records(
    folder: Path, part: str, images: int, classes: int = 10, side: int = 256
) -> float:
    """Write records of JPEGs of smooth colours with a little noise; return their mean bytes."""
    require_opencv()
    stem = folder / part
    records = recordio.MXIndexedRecordIO(f"{stem}.idx", f"{stem}.rec", "w")
    total = 0
    for number in range(images):
        generator = np.random.default_rng((0, number))
        colours = generator.normal(128, 50, (16, 16, 3))
        image = cv2.resize(colours, (side, side), interpolation=cv2.INTER_CUBIC)
        image += generator.normal(0, 3, (side, side, 1))
        pixels = np.clip(image, 0, 255).astype(np.uint8)
        encoded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
        header = recordio.IRHeader(0, float(number % classes), number, 0)
        records.write_idx(number, recordio.pack(header, encoded))
        total += len(encoded)
    records.close()
    return total / images


def compare(files: RecordFiles, rounds: int) -> Dict[str, List[float]]:
    """Return images per second of each reader in each round, on the same records.

    Every round reverses the order of the readers.
    """
    source = open_records(files, preprocessing=Preprocessing(PIXELS))
    readers = {
        "ours": lambda: training_batches(source, BATCH, THREADS),
        "same_threads": lambda: training_batches(source, BATCH, record_iter_threads(THREADS)),
        "theirs": lambda: record_iter_batches(files, BATCH, PIXELS, THREADS),
    }
    speeds: Dict[str, List[float]] = {name: [] for name in readers}
    for number in range(rounds):
        for name in sorted(readers, reverse=number % 2 == 1):
            speeds[name].append(images_per_second(readers[name](), BATCHES))
    return speeds


def record_iter_batches(
    files: RecordFiles, batch_size: int, size: int, num_workers: int
) -> Batches:
    """Yield batches of MXNet's `ImageRecordIter` endlessly; later ones overwrite them.

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


def parts(speeds: Dict[str, List[float]], size: float, command: str) -> pages.Parts:
    """Return the parts of the page; `size` is that of a JPEG in bytes."""
    columns = list(speeds.values())
    columns.append([a / b for a, b in zip(speeds["ours"], speeds["theirs"])])
    forms = (".0f", ".0f", ".0f", ".2f")
    rows = [[f"{n}", *map(format, row, forms)] for n, row in enumerate(zip(*columns), 1)]
    rows.append([f"**{cell}**" for cell in ("median", *map(format, map(median, columns), forms))])
    threads = record_iter_threads(THREADS)
    head = ["Images/s in round", f"gluon_amp, threads: {THREADS}"]
    head += [f"threads: {threads}", "ImageRecordIter", "Speed"]
    avx512 = ", AVX512" if "avx512f" in cpu_flags() else ""
    cpu = f"{count_processors()} processors, {cpu_name().replace('(R)', '')}{avx512}"
    return {
        "workers": f"{THREADS} threads requested",
        "threads": f"{threads}",
        "input": f"{IMAGES} JPEGs of {SIDE}×{SIDE} pixels, {size / 1000:.0f} kB each",
        "output": f"{BATCH} images of {PIXELS}×{PIXELS}; {BATCHES} batches a round",
        "command": f"`{command}`",
        "machine": f"{cpu}, on {datetime.date.today().isoformat()}, with {versions()}",
        "speeds": pages.table(head, rows, words=0),
    }


if __name__ == "__main__":
    sys.exit(main())
