"""The page of the FAQ's table: its estimates, recomputed, and its commands."""

import math
import re

import pytest

from gluon_amp.training.runs.recipe import read
from gluon_amp.training.tables import imagenet
from gluon_amp.training.tables.recipes import EXPERIMENTS
from tests import ROOT

import mxnet as mx
from mxnet.gluon.model_zoo import vision

MIB = 2**20


def test_the_committed_page_is_that_of_the_command():
    page = (ROOT / "docs" / "results" / "imagenet.md").read_text(encoding="utf-8")
    assert page == imagenet.page(EXPERIMENTS["imagenet"].margin)


@pytest.mark.parametrize("hours, rate", [(11.8, 2714), (7.3, 4388), (6.5, 4928)])
def test_throughput_is_all_images_over_the_published_time(hours, rate):
    """By hand: 90 * 1,281,167 / (11.8 * 3600) = 2714.3."""
    assert round(imagenet.throughput(hours)) == rate


def planned(images):
    """The MiB that MXNet plans for outputs and their gradients, in training on a CPU."""
    symbol = mx.sym.SoftmaxOutput(vision.resnet50_v1()(mx.sym.var("data")), name="softmax")
    executor = symbol.simple_bind(mx.cpu(), grad_req="write", data=(images, *imagenet.IMAGE))
    return int(re.search(r"Total (\d+) MB allocated", executor.debug_str())[1])


def test_the_activations_are_nearly_what_mxnet_plans():
    by_image = (planned(4) - planned(2)) / 2
    assert imagenet.memory("float32", 2).activations / 2 / MIB == pytest.approx(by_image, rel=0.1)


def test_float16_halves_the_activations_and_keeps_the_bytes_of_a_parameter():
    single, half = imagenet.memory("float32", 2), imagenet.memory("float16", 2)
    # the logits are written in float32 too, 4 bytes for each of 1000 classes
    assert half.activations == pytest.approx(single.activations / 2, rel=0.01)
    assert single.activations == 2 * imagenet.memory("float32", 1).activations
    # a float16 parameter has 2 bytes, its gradient 2, its master 4 and its momentum 4
    net = vision.resnet50_v1()
    net.infer_shape(mx.nd.zeros((1, *imagenet.IMAGE)))
    trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
    count = sum(math.prod(p.shape) for p in trained)
    assert half.parameters == single.parameters == 12 * count
    assert count > 25_000_000


def test_the_commands_are_the_rows_of_the_faq():
    expected = {"float32-1024": 128, "float16-1024": 128, "float16-2048": 256}
    for name, command in imagenet.commands().items():
        recipe, _ = read(command.split()[2:])
        assert (f"{recipe.dtype}-{recipe.batch_size * 8}", recipe.batch_size) == (
            name,
            expected[name],
        )
        assert (recipe.num_gpus, recipe.num_epochs, recipe.model) == (8, 90, "resnet50_v1")
        assert recipe.lr_decay_epoch == (30, 60, 80)
