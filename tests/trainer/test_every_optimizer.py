"""Laws 2 and 5 for every optimizer that MXNet knows by name, or the reason why it is refused."""

import numpy as np
import pytest

from gluon_amp import Trainer
from tests.trainer.helpers import parameter, run

import mxnet as mx

SETTINGS = {
    "clip": {"clip_gradient": 0.5},
    "momentum": {"momentum": 0.9},
    "centered": {"centered": True},
    "wd_lh": {"wd_lh": 0.1},
}
WITH = {
    "clip": ("sgd", "adam", "ftrl", "nadam", "lbsgd", "dcasgd", "signum", "groupadagrad"),
    "momentum": ("sgd", "nag", "lars", "lbsgd", "ccsgd"),  # MXNet's DCASGD fails with it
    "centered": ("rmsprop",),
    "wd_lh": ("signum",),
}
# Other tests may register their own.
NAMES = [
    name
    for name, kind in sorted(mx.optimizer.Optimizer.opt_registry.items())
    if kind.__module__.startswith(("mxnet.", "gluon_amp."))
]
CASES = [(name, {}) for name in NAMES]
CASES += [(name, SETTINGS[kind]) for kind, names in WITH.items() for name in names]
FACTORS = [[[0.5, 0.25], [-0.125, 1]]], [[[0.25, 0.5], [1, -0.5]]]


def build(name, settings, dtype):
    params = [parameter("p", [[0.5, -0.25], [1 / 3, 2]], dtype)]
    # GroupAdaGrad has no weight decay.
    settings = {"learning_rate": 0.01, "wd": 0.0 if name == "groupadagrad" else 0.01, **settings}
    return params, Trainer(params, name, settings, loss_scale=1)


def train(params, trainer, scales, start=0):
    """Return the masters after one step at each scale."""
    mx.random.seed(start)  # SGLD adds noise
    for number, scale in enumerate(scales, start):
        trainer.loss_scale.scale = scale
        assert run(trainer, list(zip(params, FACTORS[number % 2]))).applied
    return [value.asnumpy().copy() for value in trainer.master_params().values()]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name, settings", CASES)
def test_any_scales_give_the_same_bits_and_a_state_continues(name, settings, dtype, path):
    expected = train(*build(name, settings, dtype), [1, 1, 1, 1])
    params, trainer = build(name, settings, dtype)
    middle = train(params, trainer, [64, 8])
    trainer.save_states(path)
    uninterrupted = train(params, trainer, [1, 128], start=2)
    if name != "sgld":  # whose noise is another after a new seed
        np.testing.assert_array_equal(uninterrupted, expected)
    params, trainer = build(name, settings, dtype)
    for param, value in zip(params, middle):
        param.set_data(mx.nd.array(value).astype(dtype))
    trainer.load_states(path)
    np.testing.assert_array_equal(train(params, trainer, [1, 128], start=2), uninterrupted)


@pytest.mark.parametrize("settings", [{"batch_scale": 2}, {"warmup_strategy": "lars"}])
def test_an_lbsgd_that_mixes_scales_is_refused(settings):
    with pytest.raises(
        ValueError, match=r"^LBSGD with (batch_scale=2|warmup_strategy='lars').*\.$"
    ):
        Trainer([parameter("p", [1.0])], "lbsgd", settings, loss_scale=64)


def test_lbsgd_without_a_scale():
    lars = build_without_scale(warmup_strategy="lars")
    run(lars, [(lars.parameters[0], FACTORS[0][0])])
    assert np.isfinite(lars.parameters[0].data().asnumpy()).all()
    with pytest.raises(ValueError, match="LBSGD with batch_scale=2"):
        build_without_scale(batch_scale=2)


def build_without_scale(**settings):
    return Trainer([parameter("p", [[1.0, 2], [3, 4]], "float32")], "lbsgd", settings)
