"""Policies: presets, strings, pins, and their errors."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.policy import PRESETS, Decision, Policy


def test_presets():
    dtypes = {
        name: (p.param_dtype, p.compute_dtype) for name, p in zip(PRESETS, map(Policy, PRESETS))
    }
    assert dtypes == {
        "float32": ("float32", "float32"),
        "float16": ("float16", "float16"),
        "mixed_float16": ("float32", "float16"),
        "bfloat16": ("float32", "bfloat16"),
        "mixed_bfloat16": ("float32", "bfloat16"),
        "fused_float32": ("float32", "fused_float32"),
    }
    for name, fields in PRESETS.items():
        assert Policy.parse(name) == Policy(name) == Policy(*fields)
        assert Policy(name).output_dtype == "float32"


def test_strings_types_and_fields():
    for text in ("params=float16, compute=float16,output=float32", "float16"):
        assert Policy.parse(text) == Policy("float16", "float16")
    assert Policy.parse("compute=bfloat16") == Policy.parse("bfloat16")
    assert Policy.parse("compute=float16,output=float16").output_dtype == "float16"
    for dtype in (np.float16, np.dtype("float16"), "float16"):
        assert Policy(dtype) == Policy.parse(dtype) == Policy("float16", "float16")
        assert Policy("float32", dtype) == Policy(compute_dtype=dtype) == Policy("mixed_float16")
    assert Policy("float16", output_dtype="float16") == Policy("float16", "float16", "float16")
    assert Policy("mixed_float16", accumulate_dtype=np.float16).accumulate_dtype == "float16"


def test_a_policy_is_its_own_parse_and_frozen():
    policy = Policy("float32", "float16")
    assert Policy.parse(policy) is policy
    with pytest.raises(AttributeError):
        policy.compute_dtype = "float32"
    assert hash(policy) == hash(Policy("float32", "float16"))


@pytest.mark.parametrize(
    "bad, error, text",
    [
        ("flaot16", ValueError, "did you mean 'float16'"),
        ("int8", ValueError, "expected one of float32, float16"),
        ("param=float16", ValueError, "Unknown key 'param' .*did you mean 'params'"),
        ("params=float16,params=float32", ValueError, "gives 'params' twice"),
        ("compute=float64", ValueError, "compute_dtype is 'float64', expected one of"),
        ("params=bfloat16,compute=bfloat16", ValueError, "updates no bfloat16 parameters"),
        ("params=float16,compute=float32", ValueError, "float16 parameters but computes in"),
        ("compute=bfloat16,output=float16", ValueError, "neither float32 nor the compute dtype"),
        ("FP16", ValueError, r"Unknown policy 'FP16' \(did you mean 'float16'\?\)"),
        ("bf16", ValueError, r"\(did you mean 'bfloat16'\?\)"),
        (np.float64, ValueError, "Unknown policy 'float64'"),
        (16, TypeError, "policy is a int, expected a preset's name"),
        (Policy, TypeError, "policy is a type, expected a preset's name"),
    ],
)
def test_bad_policies_get_one_sentence(bad, error, text):
    with pytest.raises(error, match=text) as caught:
        Policy.parse(bad)
    assert "\n" not in str(caught.value)


def test_a_pin_adds_and_leaves_the_original_alone():
    plain = Policy.parse("float16")
    pinned = plain.pin(ops=["tanh"]).pin(blocks=["head"], ops=["dot"])
    assert plain.decide("tanh").kind == "follow"
    decision = pinned.decide("tanh")
    assert decision == Decision("float32", "pinned to float32 by the policy's own pin", True)
    assert pinned.decide("dot").kind == pinned.pin(ops=["dot"]).decide("dot").kind == "float32"
    assert pinned.decide("Convolution", block="head.0").kind == "float32"
    assert pinned.decide("Convolution", block="body.0").kind == "compute"


def test_a_pin_to_float16_and_where_operator_and_block_are_pinned_the_block_wins():
    policy = Policy.parse("float16").pin(ops=["batch_dot", "BatchNorm"], dtype="float16")
    assert Policy.parse("float16").decide("batch_dot").kind == "float32"
    assert policy.decide("batch_dot").kind == "compute"
    assert policy.decide("BatchNorm").kind == "norm"  # its parameters stay in float32
    policy = Policy.parse("float16").pin(ops=["softmax"], dtype="float16").pin(blocks=["^head"])
    assert policy.decide("softmax", block="head").kind == "float32"
    assert policy.decide("softmax", block="body").kind == "compute"


@pytest.mark.parametrize(
    "pin, text",
    [
        ({"ops": ["sofmax"]}, "unknown operator 'sofmax' .*did you mean .*'softmax'"),
        ({"ops": "softmax"}, "give a list"),
        ({"blocks": "head"}, "give a list"),
        ({}, "neither ops nor blocks"),
        ({"blocks": ["("]}, "not a regular expression"),
        ({"ops": ["softmax"], "dtype": "bfloat16"}, "expected 'float32' or the policy's compute"),
        ({"ops": ["tanh"], "dtype": "float16"}, "contradicts an earlier pin: 'tanh' was pinned"),
        ({"blocks": ["head"], "dtype": "float16"}, "contradicts an earlier pin: 'head' was"),
    ],
)
def test_bad_pins_get_one_sentence(pin, text):
    policy = Policy.parse("float16").pin(ops=["tanh"], blocks=["head"])
    with pytest.raises(ValueError, match=text) as caught:
        policy.pin(**pin)
    assert "\n" not in str(caught.value)


def test_two_patterns_that_disagree_about_a_block_are_refused():
    policy = Policy.parse("float16").pin(blocks=["head"]).pin(blocks=["d.0$"], dtype="float16")
    policy.check_blocks([("head.1", "h"), ("body.d.0", "b")])
    with pytest.raises(ValueError, match=r"Contradictory pins: block 'head\.0'"):
        policy.check_blocks([("head.0", "h"), ("body.d.0", "b")])


@pytest.mark.parametrize(
    "pattern, pinned",
    [
        ("2", ["2"]),  # the path of the layer named dense0
        ("^0$", ["0"]),
        ("dense2", ["0"]),
        ("^dense[12]_$", ["0", "1"]),
        ("seq_dense0", ["3.0"]),
        ("seq", ["3.0", "3.1"]),
    ],
)
def test_a_block_is_found_by_its_path_or_by_its_whole_name(pattern, pinned):
    names = {"0": "dense2", "1": "dense1", "2": "dense0", "3.0": "seq_dense0", "3.1": "seq_dense2"}
    policy = Policy("float16").pin(blocks=[pattern])
    policy.check_blocks([("3", "seq_"), *((path, f"{name}_") for path, name in names.items())])
    kinds = {path: policy.decide("dot", path, f"{name}_fwd").kind for path, name in names.items()}
    assert [path for path, kind in kinds.items() if kind == "float32"] == pinned
    with pytest.raises(ValueError, match="matches no block"):
        policy.check_blocks([("4", "dense12_"), ("5", "dense0_2_"), ("6", "net_seq_")])


def test_a_pattern_that_matches_no_block_is_refused_with_near_matches():
    with pytest.raises(ValueError, match="'featurs' matches no block .*did you mean 'features'"):
        Policy.parse("float16").pin(blocks=["featurs"]).check_blocks([("features", "net0")])


def test_why_gives_the_reason():
    policy = amp.Policy.parse("float16")
    assert "float32" in policy.why("BatchNorm")
    assert policy.pin(ops=["relu"]).why("relu") == "pinned to float32 by the policy's own pin"
    with pytest.raises(ValueError, match="Unknown operator 'Convolutoin' .*'Convolution'"):
        policy.why("Convolutoin")


def test_under_bfloat16_operators_without_a_kernel_run_in_float32():
    policy = Policy.parse("bfloat16")
    assert policy.decide("Convolution").kind == "compute"
    assert policy.decide("BatchNorm").kind == "norm"
    assert policy.decide("dot").kind == "float32"
    reason = policy.decide("transpose").reason
    assert reason == "MXNet 1.9.1 has no fast and correct bfloat16 kernel for it"
    assert policy.decide("softmax").reason != reason
    assert Policy("float32").decide("Convolution").kind == "float32"
