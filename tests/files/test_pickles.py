"""Pickles of plain data are read; nothing in them is executed, and little memory is used."""

import contextlib
import copyreg
import io
import pickle
import tracemalloc

import pytest

from gluon_amp.files import pickles
from gluon_amp.files.pickles import Global, Unpickler


class Reader(Unpickler):
    """Knows one class, whose objects are lists of what was done to them."""

    def is_known(self, named):
        return named == Global("known", "Thing")

    def call(self, function, arguments):
        return [str(function), arguments]

    def set_state(self, target, state):
        target.append(state)


def code(text):
    return b"\x80\x04" + text + b"."


PLAIN = {"a": [1, 300, 70000, -1, 2**70, -(2**70), 1.5, None, True, "é", "x" * 300], 3: ((), (1,))}


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_plain_data(protocol):
    data = pickle.dumps(PLAIN, protocol)
    assert Reader(data).load() == PLAIN
    long = pickle.dumps([b"x", b"y" * 70000, (1, 2, 3), (1, 2, 3, 4)], max(protocol, 3))
    assert Reader(long).load() == pickle.loads(long)


def test_a_bytearray_of_protocol_5_is_bytes():
    assert Reader(pickle.dumps(bytearray(b"xy"), 5)).load() == b"xy"


def test_several_pickles_in_a_file_are_read_one_by_one():
    file = io.BytesIO(pickle.dumps("one", 2) + pickle.dumps("two", 4) + b"rest")
    assert [Reader(file).load(), Reader(file).load(), file.read()] == ["one", "two", b"rest"]


def test_calls_objects_and_states_are_those_of_the_subclass():
    for named in (b"cknown\nThing\n", b"\x8c\x05known\x8c\x05Thing\x93"):
        for opcode in (b"R", b"\x81"):
            thing = Reader(code(named + b"K\x01K\x02\x86" + opcode + b"}b")).load()
            assert thing == ["known.Thing", (1, 2), {}]


class Call:
    calls = 0

    def __reduce__(self):
        return call_me, ()


def call_me():
    Call.calls += 1


def test_nothing_is_executed():
    copyreg.add_extension(__name__, "call_me", 0x31)  # which protocols from 2 on use
    try:
        extension = pickle.dumps(Call(), 2)
        pickle.loads(extension)  # which keeps the function for later unpicklers
        calls = Call.calls
        with pytest.raises(ValueError, match="opcode 0x82"):
            Reader(extension).load()
    finally:
        copyreg.remove_extension(__name__, "call_me", 0x31)
        copyreg.clear_extension_cache()
    for protocol in (0, 2, 4):
        with pytest.raises(ValueError, match=r"call_me|opcode 0x"):
            Reader(pickle.dumps(Call(), protocol)).load()
    assert Call.calls == calls


THING = b"cknown\nThing\n"
FORGED = {
    "another name": b"cos\nsystem\n)R",
    "a part of a class": b"cknown\nThing.part\n",
    "an object of protocol 0": b"(iknown\nThing\n",
    "an object of protocol 1": b"(cknown\nThing\no",
    "keyword arguments": THING + b")}\x92",
    "an extension of 4 bytes": b"\x84\x31\x00\x00\x00",
    "a persistent object of protocol 1": b"NQ",
    "a buffer": b"\x97",
    "a set": b"\x8f",
    "a number as text": b"L" + b"9" * 9999 + b"L\n",
    "a call of a list": b"])R",
    "a call of an object": THING + b")R)R",
    "arguments in a list": THING + b"]R",
    "a name that is a number": b"K\x01K\x01\x93",
    "items of a list": b"]K\x00Ns",
    "a list as a key": b"}]Ns",
    "a tuple as a key": b"}))\x86Ns",
    "a key twice": b"}(K\x00NK\x00Nu",
    "a key without a value": b"}(K\x00u",
    "an empty stack": b"0",
    "no end": b"X\xff\xff\xff\x7fabc",
    "a protocol of the future": b"\x80\x09N",
}


def test_other_pickles_are_errors():
    for what, text in FORGED.items():
        with pytest.raises(Exception) as caught:
            Reader(code(text)).load()
        kind = type(caught.value)
        assert not issubclass(kind, (AssertionError, MemoryError, RecursionError)), what


@pytest.mark.parametrize("text", [
    b"\x96" + (2**24).to_bytes(8, "little") + b"abc",  # lengths
    b"\x8e" + (2**24).to_bytes(8, "little") + b"abc",
    b"\x8b\xff\xff\xff\x00abc",
    b"Nr\xff\xff\xff\x000N",  # a place in the memo
    b"\x95" + (2**24).to_bytes(8, "little") + b"]K\x00",  # a frame
])  # fmt: skip
def test_a_number_in_a_file_takes_no_memory(text):
    tracemalloc.start()
    with contextlib.suppress(Exception):
        Reader(code(text)).load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**5


def test_opcodes_are_counted(monkeypatch):
    monkeypatch.setattr(pickles, "MAX_OPCODES", 100)
    assert Reader(b"\x80\x04" + b"]" * 98 + b".").load() == []
    with pytest.raises(ValueError, match="more than 100 opcodes"):
        Reader(b"\x80\x04" + b"]" * 99 + b".").load()


def test_a_deep_key_is_not_hashed():
    """Python's hash of nested tuples recurses without a limit, and ends the process."""
    with pytest.raises(ValueError, match="a tuple is used as a key"):
        Reader(code(b"})" + b"\x85" * 1000 + b"Ns")).load()
