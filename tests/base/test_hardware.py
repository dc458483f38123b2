"""What the operating system reports of the CPU and of the process's memory."""

import os

import pytest

from gluon_amp.base import hardware

pytestmark = pytest.mark.cpu_kind


def test_cores_are_not_hyperthreads(tmp_path, monkeypatch):
    # four processors, two to a core, as Linux describes them
    for processor, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(hardware, "PROCESSORS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert hardware.count_cores() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2})
    assert hardware.count_cores() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {9})
    assert hardware.count_cores() == 0
    assert hardware.count_all_cores() == 2
    monkeypatch.setattr(hardware, "PROCESSORS", tmp_path / "absent")
    assert hardware.count_all_cores() == 0


def test_the_load_is_that_of_the_last_minute(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (2.5, 1.0, 0.5))
    assert hardware.load_average() == 2.5
    monkeypatch.setattr(os, "getloadavg", lambda: os.stat("/absent"))
    assert hardware.load_average() is None


def test_the_peak_is_in_mebibytes(tmp_path, monkeypatch):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t 9000000 kB\nVmHWM:\t  204800 kB\n")
    monkeypatch.setattr(hardware, "STATUS", status)
    assert hardware.peak_mebibytes() == 200
    monkeypatch.setattr(hardware, "STATUS", tmp_path / "absent")
    assert hardware.peak_mebibytes() is None


def test_flags_are_those_of_the_first_processor(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Pentium: the first\n"
        "flags\t\t: fpu avx2 f16c\nvmx flags\t: ept\n\n"
        "processor\t: 1\nflags\t\t: fpu\n"
    )
    monkeypatch.setattr(hardware, "CPUINFO", cpuinfo)
    assert hardware.cpu_flags() == {"fpu", "avx2", "f16c"}
    assert hardware.cpu_name() == "Pentium: the first"
    assert hardware.is_intel()
    monkeypatch.setattr(hardware, "CPUINFO", tmp_path / "absent")
    assert hardware.cpu_flags() == frozenset() and not hardware.is_intel()


AMX_CPU = {"amx_tile", "amx_bf16", "avx512_bf16", "avx512f"}


@pytest.mark.parametrize(
    "isa, excluded",
    [
        ("", set()),
        ("ALL", set()),
        ("AVX512_CORE_AMX", set()),
        ("avx512_core_bf16", {"amx_bf16", "amx_tile"}),
        ("AVX512_CORE", {"amx_bf16", "amx_tile", "avx512_bf16"}),
        ("AVX2", {"amx_bf16", "amx_tile", "avx512_bf16", "avx512f"}),
    ],
)
def test_dnnl_max_cpu_isa_limits_what_onednn_may_use(isa, excluded, monkeypatch):
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", isa)
    monkeypatch.setattr(hardware, "cpu_flags", lambda: frozenset(AMX_CPU))
    monkeypatch.setattr(hardware, "is_intel", lambda: False)
    assert hardware.onednn_flags() == AMX_CPU - excluded
    assert hardware.has_amx() == (not excluded)


def test_amx_needs_all_of_its_flags(monkeypatch):
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    for lacking in sorted(hardware.AMX_FLAGS):
        monkeypatch.setattr(hardware, "cpu_flags", lambda flags=AMX_CPU - {lacking}: flags)
        assert not hardware.has_amx(), lacking
