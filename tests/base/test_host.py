"""Reads on the host wait for the operators that use the array, which may reorder it in place."""

import pickle
import time

import pytest

import gluon_amp as amp
from gluon_amp.base.host import host_copy, host_view, on_cpu

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn


class Slow(mx.operator.CustomOp):
    """Reads its input for a fifth of a second."""

    ended = False

    def forward(self, is_train, req, in_data, out_data, aux):
        time.sleep(0.2)
        Slow.ended = True
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("slow_reader")
class SlowProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Slow()


def save_checkpoint(net, path):
    amp.save_checkpoint(path, net, amp.Trainer(net.collect_params(), "sgd"))


READERS = {
    "host_copy": lambda net, path: host_copy(net.weight.data()),
    "host_view": lambda net, path: host_view(net.weight.data()),
    "save_checkpoint": save_checkpoint,
    "pickle": lambda net, path: pickle.dumps(net),
    "cast": lambda net, path: amp.cast(net, "bfloat16"),
}


def test_which_memory_is_the_hosts():
    assert on_cpu(nd.zeros(1)) and on_cpu(nd.zeros(1, ctx=mx.Context("cpu_shared", 0)))


@pytest.mark.parametrize("read", READERS)
def test_a_host_read_waits_for_operators_that_read_the_array(read, tmp_path):
    net = amp.cast(nn.Dense(2, in_units=2), "mixed_float16")
    net.initialize()
    nd.waitall()
    Slow.ended = False
    out = nd.Custom(net.weight.data(), op_type="slow_reader")
    READERS[read](net, str(tmp_path / "checkpoint"))
    assert Slow.ended
    out.wait_to_read()


def test_a_view_keeps_its_array_alive():
    part = host_view(nd.full((1000,), 7)).reshape(10, 100)[1:]
    others = [nd.full((1000,), 3) for _ in range(20)]  # one would get the memory of a freed array
    nd.waitall()
    assert (part == 7).all() and len(others) == 20
