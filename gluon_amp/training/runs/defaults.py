"""The defaults of image runs that depend on the command, the data or the network, as data."""

import re
from pathlib import Path
from typing import Any, Dict, Tuple

from gluon_amp.training.data import SMALL
from gluon_amp.training.networks import efficientnet_lite
from gluon_amp.training.runs.image_options import CALTECH, IMAGENET

# What the command or the data determines, and no option: the learning rate per 256 images, whether
# the run fine-tunes, and the batch of a run of fewer epochs than the default, None for the same.
OTHER_DEFAULTS: Dict[str, Any] = {"lr_per_256": 0.1, "fine_tunes": False, "short_batch": None}

# Defaults of kinds of data that differ from those for ImageNet; an option on the command line wins.
DATA_DEFAULTS: Dict[str, Dict[str, Any]] = {
    "synthetic": {"num_epochs": 1, "warmup_epochs": 0, "lr": 1e-4, "max_batches": 20},
    "digits": {
        # An epoch has only 6 batches of 256: a higher rate and more decay than for ImageNet. The
        # run ends after a minute or two on two cores that emulate float16.
        "model": "cifar_resnet8_v1",
        "num_epochs": 24,
        "lr_per_256": 0.4,
        # Two epochs of batches of 128 are 24 updates, after which it still guesses.
        "short_batch": 32,
        "lr_mode": "cosine",
        "warmup_epochs": 2,
        "wd": 5e-4,
        "num_workers": 0,
        "log_interval": 6,
    },
    "fashion-mnist": {
        # The run ends in about a minute on one core.
        "model": "convnet",
        "num_epochs": 4,
        "lr_per_256": 0.1,
        "lr_mode": "cosine",
        "warmup_epochs": 1,
        "wd": 5e-4,
        "num_workers": 0,
        "log_interval": 100,
    },
    "teacher": {
        # The run ends in about ten seconds on one core.
        "model": "perceptron",
        "batch_size": 256,
        "num_epochs": 1,
        "lr_per_256": 0.1,
        "lr_mode": "cosine",
        "warmup_epochs": 0.1,
        "wd": 0.0,
        "num_workers": 0,
        "log_interval": 200,
    },
}

# Defaults of networks: the colours that their weights were trained with, and no higher rate for the
# head where its many large features make ten times the rate diverge.
MODEL_DEFAULTS: Dict[str, Dict[str, Any]] = {
    efficientnet_lite.NAME: {
        "rgb_mean": efficientnet_lite.RGB_MEAN,
        "rgb_std": efficientnet_lite.RGB_STD,
        "head_lr_mult": 1.0,
    },
}

# Defaults of fine-tuning that differ from those of training: a short run at a low rate, and ten
# times that rate for the head, as in Zhang et al., "Dive into Deep Learning", section 14.2.
FINE_TUNING: Dict[str, Any] = {
    "dataset": "digits",
    "batch_size": 32,
    "num_epochs": 10,
    "lr": 0.01,
    "lr_mode": "cosine",
    "warmup_epochs": 1,
    "head_lr_mult": 10.0,
    "use_pretrained": True,
    "confusions": 5,
    "fine_tunes": True,
}
FINE_TUNING_DATA: Dict[str, Dict[str, Any]] = {
    "digits": {
        "model": "cifar_resnet8_v1",
        "batch_size": 16,
        "num_epochs": 8,
        "lr": 0.02,
        "head_lr_mult": 5.0,
        "num_workers": 0,
        "log_interval": 10,
    },
}

# The folders of data sets that do not have --data-dir's default.
FOLDERS: Dict[str, Path] = {
    **{name: small.folder for name, small in SMALL.items() if small.folder},
    **{name: IMAGENET.with_name(name) for name in CALTECH},
}

IMAGENET_SIDE = 224
# The images of small data sets are enlarged to the smallest size that the network accepts: that of
# a matching name here, or else their own.
LARGER_SIDES: Tuple[Tuple[str, int], ...] = (
    (r"inceptionv3", 299),
    (r"densenet\d+|googlenet|residualattentionnet\d+|squeezenet[\d.]+", 224),
    (r"alexnet", 64),
    (r"cifar_residualattentionnet\d+|dla34|efficientnet_lite0|hrnet_\w+|vgg\d+(_bn)?", 32),
)


def input_side(data: str, model: str) -> int:
    """Return the height and width of a network's input, for a kind of data (see `Recipe`)."""
    if data not in SMALL:
        return IMAGENET_SIDE
    larger = [side for names, side in LARGER_SIDES if re.fullmatch(names, model)]
    return max([SMALL[data].side, *larger])
