"""What MXNet's float16 FAQ publishes for ImageNet, how to repeat it, and what that should cost.

Nothing here was measured on a GPU. The time follows from the published hours. The memory is counted
on the graph, by inference of its shapes and types.
"""

import json
from dataclasses import dataclass
from typing import Dict, List, Tuple

import numpy as np

from gluon_amp import symbolic
from gluon_amp.training.tables import render
from gluon_amp.training.tables.recipes import EXPERIMENTS, RESUME
from gluon_amp.training.tables.record import Configuration
from gluon_amp.training.tables.statistics import seeds_needed
from gluon_amp.training.tables.table import FAQ, published

import mxnet as mx
from mxnet.gluon.model_zoo import vision

GPUS = 8  # of the FAQ's machine
TRAIN_IMAGES = 1_281_167  # of ILSVRC 2012
IMAGE = (3, 224, 224)
EXTRA = f"--num-gpus {GPUS} --rec-train train.rec --rec-val val.rec"
GIB = 2**30
# MXNet computes these in the memory of their input, so they need none of their own.
IN_PLACE = ("Activation", "elemwise_add", "Flatten")
# Bytes of a parameter: weight, gradient, and the optimizer's float32 momentum; a float16 weight has
# a float32 master, too.
PARAMETER_BYTES = {"float32": 4 + 4 + 4, "float16": 2 + 2 + 4 + 4}


@dataclass(frozen=True)
class Memory:
    """Bytes of a training step on one GPU.

    Attributes
    ----------
    activations : int
        Outputs of the operators that are kept for the backward pass, of the GPU's images.
    parameters : int
        Weights, gradients, masters and momenta.
    """

    activations: int
    parameters: int


def memory(dtype: str, images: int) -> Memory:
    """Return the memory of ResNet-50 v1 for `images` images on one GPU, by type inference.

    It leaves out the workspace of cuDNN, the images that wait, and MXNet itself.
    """
    symbol = vision.resnet50_v1()(mx.sym.var("data"))
    if dtype != "float32":
        symbol = symbolic.convert(symbol, dtype)
    operators = {node["name"]: node["op"] for node in json.loads(symbol.tojson())["nodes"]}
    internals = symbol.get_internals()
    _, shapes, _ = internals.infer_shape(data=(images, *IMAGE))
    _, types, _ = internals.infer_type(data="float32")
    trained = {*symbol.list_arguments()} - {"data"}
    activations = parameters = 0
    for name, shape, kind in zip(internals.list_outputs(), shapes, types):
        size, kind = int(np.prod(shape)), np.dtype(kind)
        operator = operators.get(name[: -len("_output")], "null")
        if name in trained:
            parameters += size * PARAMETER_BYTES[kind.name]
        elif operator != "null" and operator not in IN_PLACE:
            activations += size * kind.itemsize
    return Memory(activations, parameters)


def throughput(hours: float) -> float:
    """Return images per second of all GPUs: epochs times images, over the published time."""
    return epochs() * TRAIN_IMAGES / (3600 * hours)


def epochs() -> int:
    """Return the epochs of the recipe."""
    options = EXPERIMENTS["imagenet"].options
    return int(options[options.index("--num-epochs") + 1])


def commands() -> Dict[str, str]:
    """Return the command of each row, by the name of its configuration."""
    experiment = EXPERIMENTS["imagenet"]
    common = " ".join(experiment.options[: -len(RESUME)])
    return {
        configuration.name: f"gluon-amp {experiment.command} {common} {' '.join(options)} "
        f"--batch-size {configuration.batch // GPUS} {EXTRA}"
        for configuration, options in experiment.rows
    }


def page(margin: float) -> str:
    """Return docs/results/imagenet.md."""
    seeds, hours = seeds_needed(EXPERIMENTS["imagenet"].sd, margin), sum(row[2] for row in FAQ)
    rows = [_cells(configuration, published_hours) for configuration, _, published_hours in FAQ]
    parts: List[str] = [
        "# ResNet-50 on ImageNet, published",
        render.markdown(published(margin)).rstrip(),
        "Source: MXNet's [float16 FAQ](https://mxnet.apache.org/versions/1.9.1/api/faq/float16), "
        f"one run of {epochs()} epochs each.",
        "## How to repeat it",
        f"All rows, {seeds} seeds each, compared:",
        _shell([f"gluon-amp results --recipe imagenet --devices {GPUS} -- {EXTRA}"]),
        "One run of each row, in the order of the table:",
        _shell(list(commands().values())),
        "The FAQ's learning rates of 0.4 and 0.8 are the defaults for these batches.",
        "## What to expect",
        f"Estimates for {GPUS} V100. None of them was measured:",
        render.aligned(
            ("Batch size", "Data type", "Images/s", "Hours", "Activations", "Parameters", "Memory"),
            rows,
        ),
        f"- The throughput is {epochs()} × {TRAIN_IMAGES:,} images over the published hours. So "
        f"the hours of one run are those of the FAQ, and {seeds} seeds of all rows take {seeds} × "
        f"{hours:.1f} = {seeds * hours:.1f} hours on the same machine. For another machine, divide "
        "epochs × images by its own throughput, which the log has after each epoch.\n"
        "- The memory is that of one GPU: activations + parameters. The activations are the "
        "outputs of all operators except those that MXNet computes in place (ReLU, addition, "
        "flattening), with the shapes and types that it infers for the cast graph. A parameter "
        "takes 4 bytes each for weight, gradient and momentum in float32. In float16 it takes "
        "2 + 2 + 4 bytes, and 4 for the master. Workspaces of cuDNN and MXNet itself need more.",
        "## What was measured here",
        "Nothing was measured on a GPU or on ImageNet. On CPUs:",
        "- The rows' options, learning rates and batches are those of the FAQ, and files with the "
        "published figures give the published table (`tests/training/tables/`).\n"
        "- The activations in float32 agree within 10 % with the memory that MXNet plans for the "
        "same graph (`tests/training/tables/test_imagenet.py`).\n"
        "- ResNet-50 v1 casts and trains in float16, emulated: "
        "[zoo_coverage.md](zoo_coverage.md), [step.md](../benchmarks/step.md).\n"
        "- The same command trains smaller data to the accuracy of float32: "
        "[digits](digits/results.md).",
    ]
    return "\n\n".join(parts) + "\n"


def _shell(lines: List[str]) -> str:
    return "\n".join(["```sh", *lines, "```"])


def _cells(configuration: Configuration, hours: float) -> Tuple[str, ...]:
    needed = memory(configuration.dtype, configuration.batch // GPUS)
    return (
        str(configuration.batch),
        configuration.dtype,
        f"{throughput(hours):.0f}",
        f"{epochs() * TRAIN_IMAGES / throughput(hours) / 3600:.1f}",
        f"{needed.activations / GIB:.1f} GiB",
        f"{needed.parameters / GIB:.1f} GiB",
        f"{(needed.activations + needed.parameters) / GIB:.1f} GiB",
    )
