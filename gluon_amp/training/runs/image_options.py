"""Options of image runs: GluonCV's, with the spellings of MXNet's example scripts as aliases.

Two defaults differ, as GluonCV's mislead: 90 epochs instead of 3, and a learning rate that is
proportional to the batch.
"""

from pathlib import Path

from gluon_amp.training import command_line as read
from gluon_amp.training.command_line import COUNT, FOLDER, INPUT, NUMBER, OUTPUT, SWITCH
from gluon_amp.training.data import SMALL
from gluon_amp.training.runs import options
from gluon_amp.training.runs.options import DECAY, EPOCHS, LOGS, MOMENTUM, NORM, TrainingParser
from gluon_amp.training.workers.group import KV_STORES

MODES = ("hybrid", "imperative", "module")
LR_MODES = ("step", "cosine", "poly", "linear", "constant")
CALTECH = ("caltech101", "caltech256")
DATASETS = ("imagenet", *CALTECH, "folder", "rec", *SMALL)
IMAGENET = Path("~/.mxnet/datasets/imagenet")  # the default of --data-dir
OPTIMIZERS = ("sgd", "nag", "adam", "adamw", "lars", "lamb")

# Options of GluonCV's, MXNet's and NVIDIA's scripts that do not exist here, and their replacements.
NO_DISTILLATION = "distillation is not built in, so train without a teacher"
FLOAT16_EXCHANGE = "gradients are exchanged in float16 where the policy has them, so leave it out"
REFUSED = {
    "--teacher": NO_DISTILLATION,
    "--temperature": NO_DISTILLATION,
    "--hard-weight": NO_DISTILLATION,
    "--use_se": "choose the network by its name, such as --model se_resnet50_v1",
    "--use-gn": "choose the network by its name, such as --model resnet50_v1b_gn",
    "--batch-norm": "choose the network by its name, such as --model vgg16_bn",
    "--auto_aug": "augmentation is GluonCV's default, crop, flip, jitter and lighting",
    "--data-backend": "images are decoded by OpenCV on all cores, see --num-workers",
    "--gc-type": FLOAT16_EXCHANGE,
    "--gc-threshold": FLOAT16_EXCHANGE,
    "--static-loss-scale": "use --loss-scale NUMBER",
    "--monitor": "use gluon_amp.gradient_report, or --tensorboard DIR",
    "--profile": "use --benchmark, or the profiler of MXNet",
    "--no-cuda": "use --num-gpus 0",
    "--ngpus": "use --num-gpus N",
    "--dali-threads": "use --num-workers N",
    "--top-k": "top-1 and top-5 errors are always logged",
    "--layer-before-fullc": "use gluon-amp fine-tune",
}


def image_side(text: str) -> int:
    """Read a size as one number, or as MXNet's examples write it: 3,224,224."""
    parts = text.split(",")
    if len(parts) == 3 and parts[0] == "3" and parts[1] == parts[2]:
        text = parts[1]
    return read.whole(1, 8192)(text)


colours = read.several(read.real(-1e3, 1e3), "three numbers, as in 123,117,104", 3)
colour_ranges = read.several(
    read.real(1e-3, 1e3), "three numbers from 0.001 to 1000, as in 58,57,57", 3
)
epochs = read.several(read.natural, "whole numbers of at least 0, as in 30,60,80")


def add_image_options(parser: TrainingParser) -> None:
    """Add all options of an image run, in groups."""
    _add_network(parser)
    _add_data(parser)
    _add_training(parser)
    _add_checkpoints(parser)
    _add_devices(parser)
    _add_logs(parser)
    for flag, replacement in REFUSED.items():
        parser.refuse(flag, replacement)


def _add_network(parser: TrainingParser) -> None:
    add = parser.group("model")
    add("--model --network", "a name from the model zoo of GluonCV or MXNet", default="resnet50_v1")
    layers = "layers, for the names of MXNet's examples: --network resnet-v1 --num-layers 50"
    add("--num-layers", layers, COUNT)
    mode = "Gluon with or without hybridizing, or the Module API"
    add("--mode", mode, choices=MODES, default="hybrid")
    gamma = "initialize gamma of the last BatchNorm of each residual block with 0"
    add("--last-gamma", gamma, SWITCH)
    add("--use-pretrained", "start from the weights of the model zoo", SWITCH)
    file = "start from these weights; layers of other shapes keep their random values"
    add("--pretrained-file --pretrained-model", file, INPUT)
    add("--from-scratch", "start from random weights", SWITCH)
    add("--root", "folder of the model zoo's weights", FOLDER, default=Path("~/.mxnet/models"))
    add("--freeze-features", "train only the head", SWITCH)
    statistics = "keep BatchNorm's running statistics fixed"
    add("--freeze-statistics", statistics, SWITCH)
    factor = {"type": read.positive, "metavar": "FACTOR"}
    multiplier = "learning rate of the head, divided by that of the features"
    add("--head-lr-mult", multiplier, factor, default=1.0)


def _add_data(parser: TrainingParser) -> None:
    add = parser.group("data")
    chosen = "data set (default: the one that --data-dir or --rec-train names)"
    add("--dataset", chosen, choices=DATASETS)
    folders = "folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or the files of --dataset"
    add("--data-dir --data", folders, FOLDER, default=IMAGENET)
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
    add("--crop-ratio", crop, type=read.real(0, 1, above=True), default=0.875, metavar="SHARE")
    area = "random crops for training have at least this share of an image's area"
    add("--min-random-area", area, type=read.real(0, 1, above=True), default=0.08, metavar="SHARE")
    shifted = "shift images of Fashion-MNIST by up to N pixels in training"
    add("--max-shift", shifted, type=read.whole(0, 27), default=2, metavar="N")
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
    add(loaders, number, type=read.threads, metavar="N")


def _add_training(parser: TrainingParser) -> None:
    """Add the precision, the schedule, the regularization and the validation."""
    amp = "the same as --dtype mixed_float16, which is how mxnet.contrib.amp computes"
    options.add_precision(parser)("--amp", amp, SWITCH)
    add = parser.group("schedule")
    add("--batch-size -b", "images of a batch on each device", COUNT, default=128)
    add("--accumulate", "sum the gradients of N batches for each update", COUNT, default=1)
    add("--num-epochs --epochs", "passes over the training images", EPOCHS, default=90)
    add("--optimizer", "update rule", choices=OPTIMIZERS, default="sgd")
    add("--momentum --mom", "momentum of sgd, nag and lars", MOMENTUM, default=0.9)
    add("--clip-grad", "clip the gradient of the mean loss to this norm", NORM)
    rate = {"type": read.non_negative, "metavar": "RATE"}
    add("--lr", "learning rate (default: 0.1 * total batch / 256)", rate)
    add("--lr-mode", "how the learning rate falls", choices=LR_MODES, default="step")
    factor = {"type": read.positive, "metavar": "FACTOR"}
    decay = "step mode: multiply the learning rate by this"
    add("--lr-decay --lr-factor", decay, factor, default=0.1)
    at = {"type": epochs, "metavar": "EPOCHS", "default": (30, 60, 80)}
    starts = "step mode: at the start of these epochs, counted from 0"
    add("--lr-decay-epoch --lr-steps --lr-step-epochs", starts, at)
    period = "step mode: every N epochs; 0 for the epochs of --lr-decay-epoch"
    add("--lr-decay-period", period, NUMBER, default=0)
    add("--warmup-epochs", "epochs in which the learning rate rises", NUMBER, default=5)
    add("--warmup-lr", "learning rate at the start of the warm-up", rate, default=0.0)
    add("--wd --weight-decay", "weight decay", DECAY, default=1e-4)
    excluded = "apply no weight decay to biases and to the parameters of normalization layers"
    add("--no-wd", excluded, SWITCH)
    smoothing = {"type": read.share, "metavar": "EPS", "nargs": "?", "const": 0.1, "default": 0.0}
    spread = "share of the label that is spread over all classes; 0.1 without a number"
    add("--label-smoothing", spread, smoothing)
    mixup = {
        "type": read.non_negative,
        "metavar": "ALPHA",
        "nargs": "?",
        "const": 0.2,
        "default": 0.0,
    }
    mixed = "mix pairs of images, with weights from Beta(ALPHA, ALPHA); 0.2 without a number"
    add("--mixup", mixed, mixup)
    add("--mixup-alpha", "mix with this ALPHA, see --mixup", type=read.positive, metavar="ALPHA")
    add("--mixup-off-epoch", "do not mix in the last N epochs", NUMBER, default=0)
    options.add_average(parser)
    options.add_random_numbers(parser)
    add("--eval-only", "validate once and exit", SWITCH)
    every = "validate every N epochs, and after the last one"
    add("--eval-frequency", every, COUNT, default=1)
    pairs = "list the N pairs of classes that are confused most often"
    parser.group(LOGS)("--confusions", pairs, NUMBER, default=0)


def _add_checkpoints(parser: TrainingParser) -> None:
    add = options.add_checkpoints(parser, kept="keep the newest N checkpoints and the best one")
    add("--save-frequency --save-period", "save a checkpoint every N epochs", COUNT, default=1)
    start = "as in GluonCV: start with this epoch, and with --resume-params"
    flags = "--resume-epoch --load-epoch --start-epoch"
    add(flags, start, type=read.whole(0, 10**6), metavar="N")
    add("--resume-params", "parameters to start from, with --resume-epoch", INPUT)
    add("--resume-states", "trainer states to start from, with --resume-params", INPUT)


def _add_devices(parser: TrainingParser) -> None:
    add = options.add_devices(parser)
    exchange = "how gradients are summed over devices and machines"
    add("--kv-store --kvstore", exchange, choices=KV_STORES, default="device")
    dead = (
        "with dist_sync, a worker ends 5 s after the end of another one, or when one or a server "
        "has not answered for so long; 0 to wait forever"
    )
    seconds = {"type": read.non_negative, "metavar": "SECONDS"}
    add("--worker-timeout", dead, seconds, default=60.0)


def _add_logs(parser: TrainingParser) -> None:
    add = options.add_logs(parser, interval=50)
    events = "write loss, top-1, learning rate, loss scale, skips and speed for TensorBoard"
    add("--tensorboard", events, FOLDER)
    add("--plot", "draw the errors of all epochs as a PNG", OUTPUT)
    exported = "export the trained network, in float32 and in the dtypes of the policy"
    add("--export", exported, FOLDER)
    options.add_trials(parser)
    steps = "time training steps on random images in memory, and print JSON"
    add("--benchmark", steps, type=read.natural, nargs="?", default=0, const=1, metavar="0|1")
    add("--test-io", "measure how fast training images are loaded, and print JSON", SWITCH)
