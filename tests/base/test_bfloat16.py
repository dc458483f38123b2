"""Which CPUs run bfloat16 natively, and which emulate it."""

import pytest

import gluon_amp as amp
from gluon_amp import kernels
from gluon_amp.base import bfloat16, hardware
from tests.lowering import printed
from tests.marks import needs_library

import mxnet as mx
from mxnet import gluon, nd

pytestmark = pytest.mark.cpu_kind


@pytest.mark.parametrize("lacking", sorted(hardware.AVX512_FLAGS))
def test_a_cpu_without_avx512_has_no_bfloat16_and_is_not_tried(lacking, monkeypatch):
    monkeypatch.setattr(hardware, "cpu_flags", lambda: frozenset(hardware.AVX512_FLAGS - {lacking}))
    monkeypatch.setattr(mx.nd, "FullyConnected", None)
    assert not bfloat16.has_kernels.__wrapped__()


def test_a_cpu_without_known_flags_is_tried(monkeypatch):
    monkeypatch.setattr(hardware, "cpu_flags", frozenset)
    assert bfloat16.has_kernels.__wrapped__() == bfloat16.has_kernels()


AVX512 = frozenset(hardware.AVX512_FLAGS)
WITH_BF16 = AVX512 | {"avx512_bf16"}
WITH_AMX, INTEL = WITH_BF16 | hardware.AMX_FLAGS, {"GenuineIntel"}


@pytest.mark.parametrize(
    "flags, isa, choice, can_emulate, native",
    [
        (WITH_BF16, "", "", True, True),
        (WITH_AMX | INTEL, "", "", True, True),
        (WITH_AMX | INTEL, "AVX512_CORE_BF16", "", True, False),
        (WITH_BF16 | INTEL, "", "", True, False),  # slower than emulated
        (WITH_BF16 | INTEL, "", "", False, True),
        (WITH_BF16, "AVX512_CORE", "", True, False),
        (AVX512, "", "", True, False),  # slower by oneDNN's kernels than emulated
        (AVX512, "", "", False, True),
        (AVX512, "", "Native", True, True),
        (WITH_BF16, "", "emulated", False, False),
        (frozenset(), "", "", True, True),  # unknown: the trial of the kernels decides
    ],
)
def test_a_cpu_runs_bfloat16_in_the_faster_way(
    flags, isa, choice, can_emulate, native, monkeypatch
):
    monkeypatch.setattr(hardware, "cpu_flags", lambda: flags - INTEL)
    monkeypatch.setattr(hardware, "is_intel", lambda: flags >= INTEL)
    monkeypatch.setattr(bfloat16, "has_kernels", lambda: True)
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", isa)
    monkeypatch.setenv(bfloat16.VARIABLE, choice)
    assert bfloat16.is_native(can_emulate) is native
    monkeypatch.setattr(bfloat16, "has_kernels", lambda: False)
    assert not bfloat16.is_native(can_emulate)


def test_a_cpu_without_bfloat16_prints_no_error():
    code = (
        "import gluon_amp.base.bfloat16 as b, os\n"
        "os.dup2(1, 2)\n"  # also return what MXNet prints on standard error
        "print(b.is_native())"
    )
    assert printed(code, DNNL_MAX_CPU_ISA="AVX2") == "False\n"


def test_without_the_library_the_emulation_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setenv(bfloat16.VARIABLE, "emulated")
    monkeypatch.setattr(kernels, "available", lambda: False)
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    amp.cast(net, "bfloat16")
    with pytest.raises(
        ValueError, match="install a C\\+\\+ compiler or gluon_amp's manylinux wheel, or use"
    ) as error:
        net(nd.ones((1, 3)))
    assert "\n" not in str(error.value)


@needs_library
def test_the_way_can_be_chosen(monkeypatch):
    net, x = gluon.nn.Dense(1, in_units=1, use_bias=False), nd.array([[1 + 2**-7]])
    net.initialize(mx.init.Constant(1 + 2**-7))
    amp.cast(net, "bfloat16")
    exact = (1 + 2**-7) ** 2
    for value in ("Emulated", "Native", ""):
        monkeypatch.setenv(bfloat16.VARIABLE, value)
        net.hybridize()
        assert net(x).asscalar() == 1 + 2**-6 < exact  # rounded to 8 bits
        emulated = "(emulated)" in str(amp.describe(net, x))
        assert emulated == (not bfloat16.is_native())
