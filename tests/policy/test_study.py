"""Policies that study formats: their strings, pins by direction, and the ends of a net."""

import pytest

import gluon_amp as amp
from gluon_amp.policy import Decision, Policy, cast_pass
from gluon_amp.policy.study import DIRECTIONS

import mxnet as mx
from mxnet.gluon import nn

HYBRID = "params=float32,compute=float8_e4m3,gradients=float8_e5m2"
STUDY = Policy(HYBRID)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (HYBRID, "compute=float8_e4m3,gradients=float8_e5m2"),
        ("compute=tfloat32", "compute=tfloat32"),
        ("gradients=float8_e5m2", "gradients=float8_e5m2"),
        ("params=float16,compute=float16,gradients=float16", "float16"),
        ("compute=bfloat16,gradients=float32", "compute=bfloat16,gradients=float32"),
    ],
)
def test_a_name_reads_back_as_the_same_policy(text, name):
    policy = Policy(text)
    assert policy.name == name
    assert Policy(policy.name) == policy
    assert repr(policy) == f"Policy({name!r})"


def test_a_policy_studies_if_no_device_computes_so():
    study = [HYBRID, "compute=tfloat32", "compute=float16,gradients=bfloat16"]
    assert all(Policy(text).studies for text in [*study, "gradients=float8_e5m2"])
    plain = ["float16", "bfloat16", "float32", "compute=float16,gradients=float16"]
    assert not any(Policy(text).studies for text in plain)
    assert not Policy("gradients=float8_e5m2").is_float32
    assert Policy("compute=float8_e4m3").gradient_dtype == "float8_e4m3"


def test_only_products_are_rounded():
    kinds = {op: STUDY.decide(op).kind for op in ("FullyConnected", "Convolution", "dot", "tanh")}
    assert kinds == {
        "FullyConnected": "compute",
        "Convolution": "compute",
        "dot": "compute",
        "tanh": "follow",
    }
    assert STUDY.decide("RNN").kind == "float32"
    assert STUDY.decide("batch_dot").kind == "float32"
    assert STUDY.pin(ops=["batch_dot"], dtype="float8_e4m3").decide("batch_dot").kind == "compute"


def test_the_ends_are_wide_in_8_bits_only():
    symbol = mx.sym.var("x")
    for name in "abc":
        symbol = mx.sym.Convolution(symbol, kernel=(1, 1), num_filter=1, name=name)
    kinds = [
        [node.decision.kind for node in cast_pass.plan(symbol, policy, {})[1]]
        for policy in (STUDY, Policy("compute=tfloat32"))
    ]
    assert kinds == [["float32", "compute", "float32"], ["compute"] * 3]


def test_a_pin_of_a_direction_overrides_one_of_all():
    policy = STUDY.pin(blocks=["head"]).pin(
        blocks=["head"], direction="forward", dtype="float8_e4m3"
    )
    decision = policy.decide("FullyConnected", "head.0")
    assert (decision.kind, decision.wide) == ("compute", ("data_gradient", "weight_gradient"))
    assert decision.reason == (
        "pinned to float32 in data_gradient and weight_gradient by the policy's own pin"
    )
    assert policy.decide("FullyConnected", "body").wide == ()
    policy = STUDY.pin(ops=["dot"]).pin(ops=["dot"], direction="data_gradient", dtype="float8_e5m2")
    assert policy.decide("dot").wide == ("forward", "weight_gradient")
    for direction in DIRECTIONS:
        policy = policy.pin(ops=["Convolution"], direction=direction)
    whole = Decision("float32", "pinned to float32 by the policy's own pin", True)
    assert policy.decide("Convolution") == whole


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Policy("compute=float8"), "compute_dtype is 'float8', expected one of float32"),
        (lambda: Policy("float8"), r"did you mean 'params=float32,compute=float8_e4m3,gradients="),
        (lambda: Policy("params=float16,compute=float8_e4m3"), "leave out params, output and"),
        (
            lambda: Policy("compute=bfloat16,accumulate=float16"),
            "accumulates in float16 but computes in bfloat16: use compute=float16, or ",
        ),
        (
            lambda: Policy("compute=float16,accumulate=bfloat16"),
            "accumulate_dtype is 'bfloat16', expected one of float32, float16 ",
        ),
        (
            lambda: Policy("compute=fused_float32,gradients=float8_e5m2"),
            "fused_float32 is no format to round to: use float32 in its place",
        ),
        (
            lambda: STUDY.pin(blocks=["head"], direction="weights"),
            r"direction='weights'\).*expected one of forward, data_gradient, weight_gradient",
        ),
        (
            lambda: Policy("float16").pin(ops=["dot"], direction="forward"),
            "for policies that study",
        ),
        (lambda: STUDY.pin(ops=["tanh"], dtype="float8_e4m3"), "such as Convolution, .*leave out"),
        (
            lambda: STUDY.pin(ops=["dot"], dtype="float8_e5m2", direction="forward"),
            r"pin\(dtype='float8_e5m2'\): expected 'float32' or the policy's compute dtype",
        ),
    ],
)
def test_errors_say_what_to_do(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_the_default_loss_scale_follows_the_gradients():
    scales = {}
    for text in (HYBRID, "compute=float16,gradients=bfloat16", "gradients=float16"):
        net = amp.cast(nn.Dense(2, in_units=2), text)
        net.initialize()
        scales[text] = type(amp.Trainer(net.collect_params(), "sgd").loss_scale).__name__
    assert list(scales.values()) == ["NoLossScale", "NoLossScale", "DynamicLossScale"]
