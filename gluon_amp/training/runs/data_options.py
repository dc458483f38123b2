"""Options of the images to train on: where they are, and how they become the network's input."""

from pathlib import Path

from gluon_amp.training.command_line import real, several, threads, whole
from gluon_amp.training.runs.options import COUNT, DATA, FOLDER, INPUT, SWITCH
from gluon_amp.training.runs.parser import TrainingParser

DATASETS = ("imagenet", "caltech101", "caltech256", "folder", "rec", "digits", "fashion-mnist")


def image_side(text: str) -> int:
    """Read a size as one number, or as MXNet's examples write it: 3,224,224."""
    parts = text.split(",")
    if len(parts) == 3 and parts[0] == "3" and parts[1] == parts[2]:
        text = parts[1]
    return whole(1, 8192)(text)


colours = several(real(-1e3, 1e3), "three numbers, as in 123,117,104", 3)
colour_ranges = several(real(1e-3, 1e3), "three numbers from 0.001 to 1000, as in 58,57,57", 3)


def add_data(parser: TrainingParser) -> None:
    """Add the data set and its preparation."""
    add = parser.group(DATA)
    chosen = "data set (default: the one that --data-dir or --rec-train names)"
    add("--dataset", chosen, choices=DATASETS)
    folders = "folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or the files of --dataset"
    add("--data-dir --data", folders, FOLDER, default=Path("~/.mxnet/datasets/imagenet"))
    classes = (
        "folder with CLASS/*.jpg and *.png, a fifth of which are for validation (the seed decides "
        "which), or with train/CLASS and val/CLASS"
    )
    add("--image-folder", classes, FOLDER)
    index = "index of the {} images (default: the .idx beside the .rec)"
    add("--rec-train --data-train", "packed training images", INPUT)
    add("--rec-train-idx --data-train-idx", index.format("training"), INPUT)
    add("--rec-val --data-val", "packed validation images", INPUT)
    add("--rec-val-idx --data-val-idx", index.format("validation"), INPUT)
    add("--use-rec", "read DATA_DIR/rec/{train,val}.rec; implied by --rec-train", SWITCH)
    other = "stop if the data has another number of {}"
    add("--num-classes", other.format("classes"), COUNT)
    add("--num-training-samples --num-examples", other.format("training images"), COUNT)
    size = (
        "height and width of the network's input (default: 224; for the digits and "
        "Fashion-MNIST, the smallest that the network accepts)"
    )
    add("--input-size --image-shape", size, type=image_side, metavar="N")
    crop = "validation resizes the short side to INPUT_SIZE / SHARE, then crops the centre"
    add("--crop-ratio", crop, type=real(0, 1, above=True), default=0.875, metavar="SHARE")
    area = "random crops for training have at least this share of an image's area"
    add("--min-random-area", area, type=real(0, 1, above=True), default=0.08, metavar="SHARE")
    colour = {"metavar": "R,G,B"}
    mean = (
        "mean to subtract from pixels, which range from 0 to 255; that of efficientnet_lite0's "
        "weights is 127"
    )
    add("--rgb-mean", mean, colour, type=colours, default=(123.68, 116.779, 103.939))
    deviation = "standard deviation to divide pixels by; for efficientnet_lite0, 128"
    add("--rgb-std", deviation, colour, type=colour_ranges, default=(58.393, 57.12, 57.375))
    loaders = "--num-workers -j --num-data-workers --workers --num-worker --data-nthreads"
    number = "threads that load images, 0 for none (default: one for each core)"
    add(loaders, number, type=threads, metavar="N")
