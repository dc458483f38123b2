"""The engine's counters of writes: what counts, what does not, and what is not known."""

import gluon_amp  # noqa: F401
from gluon_amp.base import writes
from gluon_amp.base.writes import version
from tests.lowering import printed

from mxnet import nd


def counted(array, change):
    """Return by how much a change raises an array's version."""
    array.wait_to_read()
    before = version(array)
    change(array)
    nd.waitall()
    return version(array) - before


def fill(array):
    array[:] = 2


def grow(array):
    array += 1


WRITES = {
    "setitem": fill,
    "in place": grow,
    "out=": lambda array: nd.zeros_like(array, out=array),
    "copyto": lambda array: nd.ones((4,)).copyto(array),
    "from numpy": lambda array: array._sync_copyfrom(nd.ones((4,)).asnumpy()),
    "a view": lambda array: grow(array[1:2]),
    "another shape": lambda array: grow(array.reshape((2, 2))),
    "mx.np": lambda array: grow(array.as_np_ndarray()),
}

READS = {
    "asnumpy": lambda array: array.asnumpy(),
    "operator": lambda array: array + 1,
    "copyto": lambda array: array.copyto(nd.zeros((4,))),
    "view": lambda array: array[1:3],
    "attach_grad": lambda array: array.attach_grad(),
}


def test_every_write_counts_once_and_reads_do_not():
    for functions, times in ((WRITES, 1), (READS, 0)):
        found = {name: counted(nd.ones((4,)), function) for name, function in functions.items()}
        assert found == dict.fromkeys(functions, times)


def test_an_array_that_is_being_written_has_no_version():
    array = nd.ones((4,))
    array.wait_to_read()
    before = version(array)
    with writes._held_write(array):
        assert version(array) is None
        assert version(array[1:2]) is None
    assert version(array) == before + 1


def test_nothing_is_known_where_the_counters_are_elsewhere(monkeypatch):
    monkeypatch.setattr(writes, "_VAR_OF_CHUNK", 8)  # where the size of the memory is
    monkeypatch.setattr(writes, "_readable", writes._readable.__wrapped__)
    assert not writes._readable()
    assert version(nd.ones((4,))) is None


NAIVE = """
import gluon_amp, mxnet as mx
from gluon_amp.base.writes import version
array = mx.nd.ones((4,)); array.wait_to_read(); before = version(array)
array += 1; array.wait_to_read(); print(version(array) - before)
"""


def test_the_naive_engine_counts_too():
    assert printed(NAIVE, MXNET_ENGINE_TYPE="NaiveEngine").split() == ["1"]
