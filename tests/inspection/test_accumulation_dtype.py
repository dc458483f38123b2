"""accumulation_dtype: zero or infinity, in the emulation and on a GPU."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.inspection.accumulation_dtype import PROBES, sums
from gluon_amp.policy import Policy

import mxnet as mx

both_kinds = pytest.mark.usefixtures("arrays")  # Law 13

FLOAT32_SUMS = "params=float16,compute=float16"
FLOAT16_SUMS = "params=float16,compute=float16,accumulate=float16"
ALL_FLOAT32 = dict.fromkeys(("Convolution", "FullyConnected", "dot", "batch_dot"), "float32")


@both_kinds
def test_the_emulation_adds_up_in_float32_by_default():
    assert amp.accumulation_dtype(mx.cpu()) == ALL_FLOAT32
    float16 = amp.accumulation_dtype(mx.cpu(), accumulate="float16")
    assert float16 == dict.fromkeys(ALL_FLOAT32, "float16")


@both_kinds
@pytest.mark.parametrize("op", PROBES)
def test_a_float32_sum_is_zero_and_a_float16_sum_infinite(op):
    wide = sums(op, Policy.parse(FLOAT32_SUMS), mx.cpu())
    assert {float(x) for result in wide for x in result.ravel()} == {0.0}
    narrow = sums(op, Policy.parse(FLOAT16_SUMS), mx.cpu())
    # signs that change within a chunk of 16 cancel; after 16 and 32 of one sign they cannot
    assert [set(x.ravel().tolist()) for x in narrow] == [{0.0}] * 4 + [{np.inf}, {np.inf}]


def test_a_gpu_cannot_be_given_an_accumulation_dtype():
    with pytest.raises(ValueError) as error:
        amp.accumulation_dtype(mx.gpu(), accumulate="float16")
    assert str(error.value) == (
        "accumulate=float16 is for the emulation on a CPU, since on a GPU the kernel decides (see "
        "amp.accumulation_dtype(ctx)): leave it out of the policy."
    )


@pytest.mark.skipif(mx.context.num_gpus() == 0, reason="no GPU")
def test_a_gpu_adds_up_as_the_operator_table_says():
    assert amp.accumulation_dtype(mx.gpu()) == {**ALL_FLOAT32, "batch_dot": "float16"}
