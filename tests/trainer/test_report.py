"""The report, the log line and the error of a skipped step."""

import logging

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import DynamicLossScale, Trainer
from tests.casting.nets import small_net
from tests.trainer.helpers import backward, parameter, run, values

from mxnet import nd

inf, nan = np.inf, np.nan


def test_a_skip_is_logged_in_one_line_and_reported_to_the_callback(caplog):
    p = parameter("layer0_weight", [1.0])
    reports = []
    trainer = Trainer([p], "sgd", on_skip=reports.append)
    with caplog.at_level(logging.INFO, "gluon_amp"):
        run(trainer, [(p, [1e-3])])
        assert not caplog.records
        report = run(trainer, [(p, [inf])])
    assert reports == [report]
    (record,) = caplog.records
    assert record.getMessage() == (
        "Step skipped: gradients of layer0_weight overflowed at loss scale 65536; next scale "
        "32768, 1 skipped so far."
    )


def test_at_the_floor_a_clear_error_names_the_parameters():
    params = [parameter(f"p{i}", [1.0]) for i in range(8)]
    trainer = Trainer(
        params,
        "sgd",
        loss_scale=DynamicLossScale(init_scale=4, min_scale=1),
        max_consecutive_skips=3,
    )
    overflow = [(p, [1e5]) for p in params]
    assert [run(trainer, overflow).next_loss_scale for _ in range(4)] == [2.0, 1.0, 1.0, 1.0]
    with pytest.raises(
        FloatingPointError,
        match=r"^3 steps in a row overflowed, the last at loss scale 1, which cannot go lower than "
        r"min_scale=1 \(a lower one can be given\), in the gradients of p0, p1, p2, p3, p4 and 3 "
        r"more: the forward pass looks finite, so it is probably its gradient that overflows;",
    ):
        run(trainer, overflow)
    assert {float(values(p)[0]) for p in params} == {1.0}


@pytest.mark.parametrize(
    "value, factor, cause",
    [
        (1.0, inf, "the forward pass is not finite already, so look for infinite data"),
        (nan, 1.0, "the parameter p is not finite itself, so load a finite one"),
    ],
)
def test_at_the_floor_the_error_names_the_cause(value, factor, cause):
    p, q = parameter("p", [value]), parameter("q", [1.0])
    trainer = Trainer([p, q], "sgd", loss_scale=8, max_consecutive_skips=2)
    terms = [(p, [factor]), (q, [nan if value != value else factor])]
    assert not run(trainer, terms).applied
    with pytest.raises(FloatingPointError, match=cause):
        run(trainer, terms)


def test_the_error_names_the_network_where_a_layer_overflows():
    """A ReLU or a pool may turn the overflow of a layer into a finite loss."""
    net = amp.cast(small_net(), "float16")
    net[0].weight.set_data(nd.ones((8, 3, 3, 3)))
    x = nd.ones((2, 3, 8, 8)) + 6000
    scale = DynamicLossScale(init_scale=4.0)
    trainer = Trainer(net.collect_params(), "sgd", loss_scale=scale, max_consecutive_skips=2)
    backward(trainer, net, x)
    assert not trainer.step(1).applied
    backward(trainer, net, x)
    with pytest.raises(FloatingPointError, match="would not help, .* overflow in the network"):
        trainer.step(1)


def test_broken_data_are_reported_after_max_consecutive_skips_and_not_only_at_the_floor():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", max_consecutive_skips=4)
    for _ in range(3):
        run(trainer, [(p, [nan])])
    assert run(trainer, [(p, [1.0])]).applied
    for _ in range(3):
        run(trainer, [(p, [nan])])
    with pytest.raises(
        FloatingPointError,
        match="^4 steps in a row overflowed, the last at loss scale 1024, and a lower one would "
        "not help, in the gradients of p: the forward pass is not finite already",
    ):
        run(trainer, [(p, [nan])])
