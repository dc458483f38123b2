"""Options of image runs, each group added by one function.

Names and defaults are GluonCV's, and the spellings of MXNet's example scripts are aliases. Two
defaults differ, as GluonCV's mislead: 90 epochs instead of 3, and a learning rate that is
proportional to the batch.
"""

from pathlib import Path

from gluon_amp.command_line import natural, non_negative, positive, several, share, whole
from gluon_amp.distributed.workers import KV_STORES
from gluon_amp.recipes import options
from gluon_amp.recipes.data_options import add_data
from gluon_amp.recipes.options import COUNT, FOLDER, INPUT, NUMBER, OUTPUT, SWITCH
from gluon_amp.recipes.parser import TrainingParser

MODES = ("hybrid", "imperative", "module")
LR_MODES = ("step", "cosine", "poly", "linear", "constant")
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
    "--profile": "use scripts/benchmark.py",
    "--no-cuda": "use --num-gpus 0",
    "--ngpus": "use --num-gpus N",
    "--dali-threads": "use --num-workers N",
    "--top-k": "top-1 and top-5 errors are always logged",
    "--layer-before-fullc": "use scripts/fine_tune.py",
}


epochs = several(natural, "whole numbers of at least 0, as in 30,60,80")


def add_image_options(parser: TrainingParser) -> None:
    """Add all options of an image run, in groups."""
    _add_network(parser)
    _add_precision(parser)
    _add_devices(parser)
    add_data(parser)
    _add_training(parser)
    _add_learning_rate(parser)
    _add_regularization(parser)
    _add_pretrained_weights(parser)
    options.add_random_numbers(parser)
    _add_checkpoints(parser)
    _add_validation(parser)
    _add_logs(parser)
    _add_trials(parser)
    for flag, replacement in REFUSED.items():
        parser.refuse(flag, replacement)


def _add_network(parser: TrainingParser) -> None:
    add = parser.add_argument_group("network").add_argument
    add(
        "--model",
        "--network",
        default="resnet50_v1",
        help="a name from the model zoo of GluonCV or MXNet",
    )
    add(
        "--num-layers",
        **COUNT,
        help="layers, for the names of MXNet's examples: --network resnet-v1 --num-layers 50",
    )
    add(
        "--mode",
        choices=MODES,
        default="hybrid",
        help="Gluon with or without hybridizing, or the Module API",
    )
    add(
        "--last-gamma",
        **SWITCH,
        help="initialize gamma of the last BatchNorm of each residual block with 0",
    )


def _add_precision(parser: TrainingParser) -> None:
    add = options.add_precision(parser)
    add(
        "--amp",
        **SWITCH,
        help="compute in float16 and keep float32 parameters, as mxnet.contrib.amp does; "
        "--dtype float16 keeps float16 parameters and float32 masters",
    )


def _add_devices(parser: TrainingParser) -> None:
    add = options.add_devices(parser)
    add(
        "--kv-store",
        "--kvstore",
        choices=KV_STORES,
        default="device",
        help="how gradients are summed over devices and machines",
    )


def _add_training(parser: TrainingParser) -> None:
    add = parser.add_argument_group("training").add_argument
    add("--batch-size", "-b", **COUNT, default=128, help="images of a batch on each device")
    add("--accumulate", **COUNT, default=1, help="sum the gradients of N batches for each update")
    add(
        "--num-epochs",
        "--epochs",
        type=whole(1, 10**6),
        default=90,
        metavar="N",
        help="passes over the training images",
    )
    add("--optimizer", choices=OPTIMIZERS, default="sgd", help="update rule")
    add(
        "--momentum",
        "--mom",
        type=share,
        default=0.9,
        metavar="M",
        help="momentum of sgd, nag and lars",
    )
    add(
        "--clip-grad",
        type=positive,
        metavar="NORM",
        help="clip the gradient of the mean loss to this norm",
    )


def _add_learning_rate(parser: TrainingParser) -> None:
    add = parser.add_argument_group("learning rate").add_argument
    add(
        "--lr",
        type=non_negative,
        metavar="RATE",
        help="learning rate (default: 0.1 * total batch / 256)",
    )
    add("--lr-mode", choices=LR_MODES, default="step", help="how the learning rate falls")
    add(
        "--lr-decay",
        "--lr-factor",
        type=positive,
        default=0.1,
        metavar="FACTOR",
        help="step mode: multiply the learning rate by this",
    )
    add(
        "--lr-decay-epoch",
        "--lr-steps",
        "--lr-step-epochs",
        type=epochs,
        default=(30, 60, 80),
        metavar="EPOCHS",
        help="step mode: at the start of these epochs, counted from 0",
    )
    add(
        "--lr-decay-period",
        **NUMBER,
        default=0,
        help="step mode: every N epochs; 0 for the epochs of --lr-decay-epoch",
    )
    add("--warmup-epochs", **NUMBER, default=5, help="epochs in which the learning rate rises")
    add(
        "--warmup-lr",
        type=non_negative,
        default=0.0,
        metavar="RATE",
        help="learning rate at the start of the warm-up",
    )


def _add_regularization(parser: TrainingParser) -> None:
    add = parser.add_argument_group("regularization").add_argument
    add(
        "--wd", "--weight-decay", type=non_negative, default=1e-4, metavar="WD", help="weight decay"
    )
    add(
        "--no-wd",
        **SWITCH,
        help="apply no weight decay to biases and to the parameters of normalization layers",
    )
    add(
        "--label-smoothing",
        type=share,
        default=0.0,
        nargs="?",
        const=0.1,
        metavar="EPS",
        help="share of the label that is spread over all classes; 0.1 without a number",
    )
    add(
        "--mixup",
        type=non_negative,
        default=0.0,
        nargs="?",
        const=0.2,
        metavar="ALPHA",
        help="mix pairs of images, with weights from Beta(ALPHA, ALPHA); 0.2 without a number",
    )
    add("--mixup-alpha", type=positive, metavar="ALPHA", help="mix with this ALPHA, see --mixup")
    add("--mixup-off-epoch", **NUMBER, default=0, help="do not mix in the last N epochs")


def _add_pretrained_weights(parser: TrainingParser) -> None:
    add = parser.add_argument_group("pretrained weights").add_argument
    add("--use-pretrained", **SWITCH, help="start from the weights of the model zoo")
    add(
        "--pretrained-file",
        "--pretrained-model",
        **INPUT,
        help="start from these weights; layers of other shapes keep their random values",
    )
    add("--from-scratch", **SWITCH, help="start from random weights")
    add(
        "--root",
        **FOLDER,
        default=Path("~/.mxnet/models"),
        help="folder of the model zoo's weights",
    )
    add("--freeze-features", **SWITCH, help="train only the head")
    add(
        "--head-lr-mult",
        type=positive,
        default=1.0,
        metavar="FACTOR",
        help="learning rate of the head, divided by that of the features",
    )


def _add_checkpoints(parser: TrainingParser) -> None:
    add = options.add_checkpoints(parser, kept="keep the newest N checkpoints and the best one")
    add(
        "--save-frequency",
        "--save-period",
        **COUNT,
        default=1,
        help="save a checkpoint every N epochs",
    )
    add(
        "--resume-epoch",
        "--load-epoch",
        "--start-epoch",
        type=whole(0, 10**6),
        metavar="N",
        help="as in GluonCV: start with this epoch, and with --resume-params",
    )
    add("--resume-params", **INPUT, help="parameters to start from, with --resume-epoch")
    add("--resume-states", **INPUT, help="trainer states to start from, with --resume-params")


def _add_validation(parser: TrainingParser) -> None:
    add = parser.add_argument_group("validation").add_argument
    add("--eval-only", **SWITCH, help="validate once and exit")
    add(
        "--eval-frequency",
        **COUNT,
        default=1,
        help="validate every N epochs, and after the last one",
    )
    add(
        "--confusions",
        **NUMBER,
        default=0,
        help="list the N pairs of classes that are confused most often",
    )


def _add_logs(parser: TrainingParser) -> None:
    add = options.add_logs(parser, interval=50)
    add("--logging-file", **OUTPUT, help="also append the log to this file")
    add(
        "--tensorboard",
        **FOLDER,
        help="write loss, top-1, learning rate, loss scale, skips and speed for TensorBoard",
    )
    add("--plot", **OUTPUT, help="draw the errors of all epochs as a PNG")
    add(
        "--export",
        **FOLDER,
        help="export the trained network, in float32 and in the dtypes of the policy",
    )


def _add_trials(parser: TrainingParser) -> None:
    add = options.add_trials(parser)
    add(
        "--benchmark",
        type=natural,
        nargs="?",
        default=0,
        const=1,
        metavar="0|1",
        help="time training steps on random images in memory, and print JSON",
    )
    add(
        "--test-io",
        **SWITCH,
        help="measure how fast training images are loaded, and print JSON",
    )
