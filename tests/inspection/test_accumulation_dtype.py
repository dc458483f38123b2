"""accumulation_dtype: zero or infinity, in the emulation and on a GPU."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.inspection.accumulation_dtype import PROBES, sums
from gluon_amp.policy import Policy

import mxnet as mx

ALL_FLOAT32 = dict.fromkeys(PROBES, "float32")


def test_the_emulation_adds_up_in_float32():
    assert amp.accumulation_dtype(mx.cpu()) == ALL_FLOAT32


@pytest.mark.parametrize("op", PROBES)
def test_a_float16_sum_overflows_where_signs_stay_long_enough(op):
    # signs that change within a chunk of 16 cancel; after 16 and 32 of one sign they cannot
    policy = Policy.parse("params=float16,compute=float16,accumulate=float16")
    seen = [set(x.ravel().tolist()) for x in sums(op, policy, mx.cpu())]
    assert seen == [{0.0}] * 4 + [{np.inf}, {np.inf}]


@pytest.mark.skipif(mx.context.num_gpus() == 0, reason="no GPU")
def test_a_gpu_adds_up_as_the_operator_table_says():
    assert amp.accumulation_dtype(mx.gpu()) == {**ALL_FLOAT32, "batch_dot": "float16"}
