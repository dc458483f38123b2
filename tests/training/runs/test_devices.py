"""The devices of a run."""

import pytest

from gluon_amp.base import bfloat16
from gluon_amp.base.messages import UsageError
from gluon_amp.policy import Policy
from gluon_amp.training.runs.devices import contexts, is_emulated

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
        monkeypatch.setattr(bfloat16, "is_native", lambda native=native: native)
        assert is_emulated(Policy("bfloat16"), [mx.cpu()]) is not native
        assert not is_emulated(Policy("float32"), [mx.cpu()])
        assert is_emulated(Policy("compute=tfloat32"), [mx.cpu()])
