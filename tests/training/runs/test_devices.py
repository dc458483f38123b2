"""The devices of a run."""

import pytest

from gluon_amp import kernels
from gluon_amp.base import bfloat16, hardware
from gluon_amp.base.messages import UsageError
from gluon_amp.policy import Policy
from gluon_amp.training.runs.devices import contexts, is_emulated, other_recommended

import mxnet as mx


@pytest.mark.skipif(mx.context.num_gpus() > 0, reason="this machine has a GPU")
def test_devices_on_a_machine_without_gpus():
    assert contexts() == contexts(num_gpus=0) == contexts(gpus=()) == [mx.cpu()]
    with pytest.raises(UsageError, match="GPU 0 was asked for, but MXNet sees no GPU here"):
        contexts(gpus=(0,))
    with pytest.raises(UsageError, match="GPU 0 was asked for"):
        contexts(num_gpus=1)
    with pytest.raises(UsageError, match="--gpus 0,0 names a GPU twice"):
        contexts(gpus=(0, 0))


def test_float16_is_emulated_on_a_cpu_and_bfloat16_where_it_has_no_kernels(monkeypatch):
    assert is_emulated(Policy("float16"), [mx.cpu()])
    assert not is_emulated(Policy("float16"), [mx.gpu(0)])
    for native in (True, False):
        monkeypatch.setattr(bfloat16, "is_native", lambda library, native=native: native)
        assert is_emulated(Policy("bfloat16"), [mx.cpu()]) is not native
        assert not is_emulated(Policy("float32"), [mx.cpu()])
        assert is_emulated(Policy("compute=tfloat32"), [mx.cpu()])


def test_another_dtype_is_recommended_to_who_asks_for_low_precision_on_a_cpu(monkeypatch):
    monkeypatch.setattr(hardware, "onednn_flags", lambda: frozenset({"avx2", "avx512_bf16"}))
    monkeypatch.setattr(kernels, "available", lambda: True)
    fused = "Recommended here: --dtype fused_float32 (float32 values, mostly faster)"
    faster = "Recommended here: --dtype bfloat16 (AVX512_BF16, faster than float32)"
    for native, dtype, line in [
        (True, "float32", None),
        (True, "bfloat16", None),
        (True, "mixed_float16", faster),
        (True, "compute=tfloat32", faster),
        (False, "float32", None),
        (False, "bfloat16", fused),
        (False, "float16", fused),
        (False, "fused_float32", None),
    ]:
        monkeypatch.setattr(bfloat16, "is_native", lambda library, native=native: native)
        assert other_recommended(Policy(dtype), [mx.cpu()]) == line
        assert other_recommended(Policy(dtype), [mx.gpu(0)]) is None
