"""The hardware of runs in words."""

import platform

import gluon_amp
from gluon_amp.training.tables.machine import describe, describe_cpu, describe_gpus


def test_the_hardware_is_named(tmp_path, monkeypatch):
    cpuinfo, cores = tmp_path / "cpuinfo", []
    monkeypatch.setattr(gluon_amp.base.hardware, "CPUINFO", cpuinfo)
    monkeypatch.setattr("gluon_amp.training.tables.machine.count_cores", lambda: cores[-1])

    def described(text, count):
        cpuinfo.write_text(text)
        cores.append(count)
        return describe_cpu()

    everything = "processor : 0\nmodel name\t: AMD EPYC \nflags\t\t: fpu avx512_bf16 amx_bf16\n"
    assert described(everything, 2) == "AMD EPYC, 2 cores, AVX512_BF16, AMX"
    wide = "model name : Xeon\nflags : avx2 avx512f\n"
    assert described(wide, 1) == "Xeon, 1 core, AVX512"
    assert described(wide.replace("avx512f", "fma"), 1) == "Xeon, 1 core, AVX2"
    assert described("model name : Xeon\nflags : fpu\n", 1) == "Xeon, 1 core"
    assert described("", 0) == (platform.processor() or platform.machine())
    assert describe_gpus("V100\nV100\n\n") == "2 × V100"
    assert describe("cpu(0)") == describe_cpu()
