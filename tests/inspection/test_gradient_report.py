"""gradient_report: how far gradients are from the limits of float16."""

import math

import pytest

import gluon_amp as amp
from gluon_amp.inspection.diagnose import diagnose
from gluon_amp.inspection.gradient_report import gradient_report
from tests.inspection.nets import L2, built, chain, images, labels, make_net, one, total

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn


def backward(net, data, scale, loss_fn=total):
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=scale)
    with autograd.record():
        loss = loss_fn(net(data), None)
    trainer.backward(loss)
    return trainer


def test_report_of_literal_numbers():
    net = built(nn.Dense(1, in_units=4, use_bias=False))
    # The gradient is the input times the scale: one zero, one below 2**-14, one flushed.
    trainer = backward(net, nd.array([[4.0, 0.0, 2.0**-20, 2.0**-24]]), 0.5)
    report = gradient_report(net, trainer)
    (row,) = report.rows
    assert row._asdict() == {
        "name": net[0].weight.name,
        "dtype": "float16",
        "size": 4,
        "largest": 2.0,
        "zero": 0.5,
        "subnormal": 0.25,
        "headroom": math.log2(65504 / 2),
    }
    assert report.loss_scale == 0.5
    # The true largest is 4: times 2**14 it is 65536, too large, so 2**13 minus 3 bits.
    assert report.recommended_scale == 2.0**10


def test_the_recommended_scale_works():
    def loss(out, _):
        return L2(out, labels())

    net = make_net("mixed_float16")
    first = gradient_report(net, backward(net, images(), 16, loss))
    scale = first.recommended_scale
    assert diagnose(net, L2, images(), labels(), scale).verdict == "ok"
    report = gradient_report(net, backward(net, images(), scale, loss))
    assert 3 <= min(row.headroom for row in report.rows) < 4.1
    assert report.recommended_scale == scale


def test_rows_name_the_dtype_that_was_computed_in():
    for policy in ("float16", "mixed_float16"):
        net = make_net(policy)
        dtypes = [row.dtype for row in gradient_report(net, backward(net, images(), 16)).rows]
        assert dtypes == ["float16"] * 2 + ["float32"] * 2 + ["float16"] * 4
    net = make_net("bfloat16")
    report = gradient_report(net, backward(net, images(), None))
    assert {(row.dtype, row.headroom) for row in report.rows} == {("float32", math.inf)}
    assert (report.loss_scale, report.recommended_scale) == (1, None)
    assert "nothing to recommend" in str(report)


def test_frozen_parameters_are_left_out_and_sparse_gradients_are_not():
    net = built(nn.Embedding(10, 2, sparse_grad=True), nn.Dense(1), policy="mixed_float16")
    net[1].bias.grad_req = "null"
    report = gradient_report(net, backward(net, nd.array([[1, 1]]), 4))
    assert [row.name for row in report.rows] == [net[0].weight.name, net[1].weight.name]
    assert (report.rows[0].size, report.rows[0].zero) == (20, 0.9)  # one row of ten


def test_several_devices_and_sums_that_a_clip_has_reduced():
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = nn.Dense(1, in_units=1, use_bias=False)
    net.initialize(ctx=contexts)
    trainer = amp.Trainer(amp.cast(net).collect_params(), "sgd", loss_scale=128)
    with autograd.record():
        losses = [net(nd.array([[x]], ctx=ctx)).sum() for x, ctx in zip((0, 2), contexts)]
    trainer.backward(losses)
    (row,) = gradient_report(net, trainer).rows
    assert (row.size, row.largest, row.zero) == (2, 256, 0.5)
    trainer.clip_global_norm(1, 1)  # divides by 2 before it adds
    report = gradient_report(net, trainer)
    assert (report.loss_scale, report.rows[0].largest, report.rows[0].zero) == (64, 128, 0)


def test_after_an_overflow_and_before_a_backward_pass_nothing_is_recommended():
    net = chain(1, 16)
    with pytest.raises(RuntimeError, match=r"call trainer.backward\(loss\) first"):
        gradient_report(net, amp.Trainer(net.collect_params(), "sgd"))
    report = gradient_report(net, backward(net, one(1), 2.0**12))
    assert report.overflowed == [net[0].weight.name]
    assert (report.rows[0].headroom, report.recommended_scale) == (-math.inf, None)
    assert str(report).endswith("loss scale 4096, which overflowed: lower it and look again")


def test_the_table_is_80_columns_wide():
    net = nn.HybridSequential(prefix="a_net_with_a_name_that_is_much_too_long_for_the_table_")
    with net.name_scope():
        net.add(nn.Dense(2, in_units=2), nn.BatchNorm())
    net.initialize()
    report = gradient_report(net, backward(amp.cast(net), nd.array([[1, 2], [0, 4]]), 4))
    lines = str(report).splitlines()
    assert len(lines) == 6
    assert {len(line) for line in lines[:-1]} == {80}
    assert lines[0].split() == ["gradient", "of", "dtype", "largest", "0", "<2^-14", "headroom"]
    assert lines[1].startswith("…") and "dense0_weight" in lines[1]
    assert lines[-1].startswith("loss scale 4, ")
