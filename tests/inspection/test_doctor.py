"""The doctor on this machine, and on machines with other GPUs, which are data."""

import json

import pytest

import gluon_amp as amp
from gluon_amp.base.messages import install
from gluon_amp.inspection.doctor import advice, detection, environment
from gluon_amp.inspection.doctor.detection import Driver, Gpu, Machine
from gluon_amp.training.console.doctor import main

import mxnet as mx

PASCAL = Gpu("Tesla P40", (6, 1))
VOLTA = Gpu("Tesla V100-SXM2-16GB", (7, 0))
HOPPER = Gpu("NVIDIA H100 80GB HBM3", (9, 0))

FAST = "runs MXNet, and float16 on Tensor Cores."
SLOW = "runs MXNet, but has no Tensor Cores, which came with 7.0: float16 saves memory here, but "
TOO_NEW = "cannot run MXNet's kernels (\"no kernel image is available\"): MXNet 1.9.1's wheels "
TOO_OLD = "cannot run MXNet's kernels: it is older than MXNet 1.9.1's wheels, which hold machine "


@pytest.fixture
def pretend(monkeypatch):
    """Return a function that replaces this machine by another, without environment variables."""

    def become(*gpus, driver=True, cuda=True, flags="f16c avx2 avx512f avx512_bf16", **other):
        facts = {
            "python": "3.11.7",
            "numpy": "1.23.5",
            "mxnet": "1.9.1",
            "system": "Linux x86_64",
            "wheels": ["mxnet-cu117"] if cuda else ["mxnet"],
            "cuda_build": cuda,
            "driver": Driver(driver, list(gpus)),
            "cpu_name": "AMD EPYC 9R14",
            "cores": 2,
            "all_cores": 2,
            "load": 0.5,
            "cpu_flags": frozenset(flags.split()),
            "all_cpu_flags": frozenset("f16c avx2 avx512f".split()),
            "cpu_bfloat16": True,
            "compiler": "g++",
            "native": True,
            "prebuilt": False,
        }
        monkeypatch.setattr(detection, "read_machine", lambda: Machine(**{**facts, **other}))
        for variable in environment.VARIABLES:
            monkeypatch.delenv(variable.name, raising=False)

    return become


def joined(report):
    return " ".join(str(report).split())


# ------------------------------------------------------------------------------ this machine


def test_this_machine(capsys, monkeypatch):
    monkeypatch.setenv("MXNET_SAFE_ACCUMULATION", "1")
    monkeypatch.delenv("GLUON_AMP_BFLOAT16", raising=False)
    assert main(["--policy", "float16", "--device", "cpu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True and report["asked"] == "float16" and report["device"] == "cpu"
    assert report["mxnet"] == mx.__version__ and report["cpu"]["name"]
    assert report["cuda_build"] is mx.runtime.Features().is_enabled("CUDA")
    policies = [item["policy"] for item in report["policies"]]
    assert policies == ["float32", "float16", "mixed_float16", "bfloat16", "fused_float32"]
    values = {item["name"]: item["value"] for item in report["environment"]}
    assert values["MXNET_SAFE_ACCUMULATION"] == "1" and values["GLUON_AMP_BFLOAT16"] is None

    assert main(["--device", "cpu"]) == main(["--device", "cpu", "--verbose"]) == 0
    printed = capsys.readouterr().out
    brief, title, verbose = printed.partition("Environment variables (-: not set)\n")
    assert "Environment variables that are set\n" in brief and title
    assert "MXNET_SAFE_ACCUMULATION: 1" in brief and "GLUON_AMP_BFLOAT16" not in brief
    assert "MXNET_SAFE_ACCUMULATION: 1" in verbose and "GLUON_AMP_BFLOAT16: -" in verbose
    assert max(map(len, printed.splitlines())) <= 80


def test_wrong_options_are_one_sentence(capsys):
    assert main(["--policy", "flot16"], prog="doctor") == 2
    error = capsys.readouterr().err
    assert error.startswith("doctor: Unknown policy 'flot16' (did you mean 'float16' or ")
    assert error.count("\n") == 1
    with pytest.raises(ValueError, match=r"^doctor\(\) got the device 'tpu', expected 'gpu' or"):
        amp.doctor(device="tpu")


# ------------------------------------------------------------------------- machines with GPUs


@pytest.mark.parametrize("gpu, about, runs, tensor_cores", [
    (Gpu("Tesla K80", (3, 7)), TOO_OLD, False, False),
    (PASCAL, SLOW, True, False),
    (VOLTA, FAST, True, True),
    (Gpu("NVIDIA GeForce GTX 1660 Ti", (7, 5)), SLOW, True, False),
    (Gpu("NVIDIA L4", (8, 9)), FAST, True, True),
    (HOPPER, TOO_NEW, False, True),
])  # fmt: skip
def test_each_generation(pretend, capsys, gpu, about, runs, tensor_cores):
    pretend(gpu)
    capability = "{}.{}".format(*gpu.capability)
    assert main(["--policy", "float16"]) == (0 if runs else 1)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert f"GPU 0 {gpu.name} ({capability}): {about}" in " ".join(printed.split())
    (seen,) = amp.doctor().to_dict()["gpus"]
    assert seen.pop("advice").startswith(about)
    facts = {"name": gpu.name, "capability": capability}
    assert seen == {**facts, "runs": runs, "tensor_cores": tensor_cores}


EMULATED = "emulated by MXNet's own operators, several times slower than float32: install a C++ "
NO_AVX512 = {"flags": "avx2 f16c", "cpu_bfloat16": False}
FORBIDDEN = {**NO_AVX512, "all_cpu_flags": frozenset({"avx512_bf16"})}
UNUSED = {"cpu_bfloat16": False, "all_cpu_flags": frozenset({"avx512_bf16"})}
SLOWER = "emulated, about as fast as float32: the roundings of bfloat16."
WITHOUT = "without Tensor Cores on Tesla P40: about as fast as float32, half of the memory."
CPU = {"driver": False, "cuda": False}
ALONE = {"native": False, "compiler": None}


@pytest.mark.parametrize("gpus, options, policy, runs, how", [
    ([VOLTA], {}, "compute=float8_e4m3", False, "formats for study are emulated on a CPU only"),
    ([PASCAL], {}, "mixed_float16", True, WITHOUT),
    ([VOLTA, PASCAL], {}, "float16", True, WITHOUT),
    ([HOPPER], {}, "bfloat16", False, f"NVIDIA H100 80GB HBM3 {TOO_NEW}"),
    ([], CPU, "float32", True, "by oneDNN, on all cores."),
    ([], CPU, "float16", True, "emulated by C++ kernels: the roundings of float16, about as "),
    ([], {**CPU, **ALONE}, "float16", True, EMULATED),
    ([], CPU, "compute=float8_e4m3", True, "emulated, for study: the roundings of its formats"),
    ([], {**CPU, **ALONE}, "compute=float8_e4m3", False, "emulating it takes the C++"),
    ([], {**CPU, "flags": "amx_tile amx_bf16"}, "bfloat16", True, "by oneDNN, with AMX if "),
    ([], CPU, "bfloat16", True, "by oneDNN with AVX512_BF16: two products in the time of one"),
    ([], {**CPU, "flags": "avx512f"}, "bfloat16", True, "by oneDNN with AVX512, but without "),
    ([], {**CPU, **NO_AVX512}, "bfloat16", True, f"{SLOWER} This CPU has no AVX512_BF16 "),
    ([], {**CPU, **FORBIDDEN}, "bfloat16", True, f"{SLOWER} Intel's AVX512_BF16 without "),
    ([], {**CPU, **UNUSED}, "bfloat16", True, f"{SLOWER} oneDNN does not use the AVX512_BF16"),
    ([], {**CPU, **NO_AVX512, "native": False}, "bfloat16", False, "oneDNN has no bfloat16 "),
])  # fmt: skip
def test_how_a_policy_runs(pretend, gpus, options, policy, runs, how):
    pretend(*gpus, **options)
    report = amp.doctor(policy)
    (outcome,) = (each for each in report.outcomes if each.policy == policy)
    assert outcome.runs is report.ok is runs
    assert outcome.how.startswith(how)


@pytest.mark.parametrize("gpus, options, sentence", [
    ([], {"driver": False}, "no NVIDIA driver here (libcuda.so.1 is not found)."),
    ([], {}, "the NVIDIA driver finds no GPU; see CUDA_VISIBLE_DEVICES and `nvidia-smi`."),
    (
        [VOLTA],
        {"cuda": False},
        "MXNet is installed for CPUs only and uses no GPU: run `pip uninstall mxnet`, then "
        f"`{install('cu117')}`.",
    ),
])  # fmt: skip
def test_without_a_gpu_that_mxnet_uses(pretend, gpus, options, sentence):
    pretend(*gpus, **options)
    report = amp.doctor("float16")
    assert report.device == "cpu" and report.ok  # emulated
    assert f"GPU {sentence}" in joined(report)
    on_gpu = amp.doctor("float16", device="gpu")
    assert not on_gpu.ok and on_gpu.outcomes[1].how == f"There is no GPU to use: {sentence}"


@pytest.mark.parametrize(
    "load, cores, warns",
    [(2.1, 2, True), (2.0, 2, False), (None, 2, False), (9.0, 0, False)],
)
def test_a_load_above_the_cores_is_warned_of(pretend, monkeypatch, load, cores, warns):
    pretend(load=load, all_cores=cores)
    report = amp.doctor()
    cpu = report.to_dict()["cpu"]
    assert cpu["load"] == load and (cpu["warning"] is not None) is warns
    assert ("WARNING" in str(report)) is warns
    if warns:
        assert f"WARNING: {cpu['warning']}" in joined(report)
        assert cpu["warning"].startswith(
            "Other programs are using this machine (load 2.1 on 2 cores), "
        )
    for threads, advised in (("1", False), ("8", True)):  # fewer, where there are several
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        assert ("OMP_NUM_THREADS" in advice.about_load(9.0, 8)) is advised
        assert "OMP_NUM_THREADS" not in advice.about_load(9.0, 1)


def test_the_whole_report_of_a_machine(pretend):
    pretend(VOLTA)
    assert str(amp.doctor("bfloat16")) == (
        "Python  3.11.7, numpy 1.23.5, Linux x86_64\n"
        "MXNet   1.9.1 (mxnet-cu117), with CUDA\n"
        "CPU     AMD EPYC 9R14, 2 cores\n"
        "        F16C, AVX2, AVX512, AVX512_BF16\n"
        "        C++ compiler: g++; C++ kernels: compiled here\n"
        "GPU 0   Tesla V100-SXM2-16GB (7.0): runs MXNet, and float16 on Tensor Cores.\n"
        "\n"
        "Policies on the GPU\n"
        "  float32        runs       by cuDNN and cuBLAS.\n"
        "  float16        runs       on Tensor Cores, which accumulate in float32; half\n"
        "                            of the memory.\n"
        "  mixed_float16  runs       on Tensor Cores, which accumulate in float32; half\n"
        "                            of the memory.\n"
        "  bfloat16       CANNOT RUN MXNet 1.9.1 has no bfloat16 kernels for GPUs: use\n"
        "                            float16 or mixed_float16, or the CPU.\n"
        "  fused_float32  runs       by cuDNN and cuBLAS.\n"
        "\n"
        "Environment variables that are set: none that matters\n"
        "\n"
        "Policy bfloat16 cannot run here: MXNet 1.9.1 has no bfloat16 kernels for GPUs:\n"
        "use float16 or mixed_float16, or the CPU.\n"
        "\n"
        "Recommended here: --dtype float16 (Tensor Cores; MXNet's wheels end with Ada)"
    )
    # a name takes all of its flags
    assert advice.cpu_features(frozenset({"f16c", "amx_tile", "avx512f"})) == ["F16C", "AVX512"]


BF16 = "bfloat16 (AVX512_BF16, faster than float32)"
FUSED = "fused_float32 (float32 values, mostly faster)"
STUDY = "float32 (emulated low precision is for study)"


@pytest.mark.parametrize("gpus, options, device, line", [
    ([], CPU, None, f"--dtype {BF16}"),
    ([], CPU, "gpu", f"--dtype {BF16}"),
    ([], {**CPU, "flags": "amx_tile amx_bf16"}, None, "--dtype bfloat16 (AMX, faster than "),
    ([], {**CPU, **NO_AVX512}, None, f"--dtype {FUSED}"),
    ([], {**CPU, **NO_AVX512, **ALONE}, None, f"--dtype {STUDY}"),
    ([], {**CPU, "flags": "avx512f"}, None, f"--dtype {STUDY}"),  # no AVX2
    ([], {**CPU, "cpu_bfloat16": False}, None, f"--dtype {FUSED}"),  # emulated by choice
    ([VOLTA], {"cuda": False}, None, f"--dtype {BF16}"),
    ([VOLTA], {}, "cpu", f"--cpus 1 --dtype {BF16}"),
    ([HOPPER], NO_AVX512, None, f"--cpus 1 --dtype {FUSED}"),
    ([HOPPER, VOLTA], {}, None, "--dtype float16 (Tensor Cores; MXNet's wheels end with Ada)"),
    ([VOLTA, PASCAL], {}, None, "--dtype float32 (no Tensor Cores: float16 saves memory only)"),
])  # fmt: skip
def test_the_last_line_recommends_a_policy(pretend, gpus, options, device, line):
    pretend(*gpus, **options)
    report = amp.doctor(device=device)
    last = str(report).splitlines()[-1]
    assert last.startswith(f"Recommended here: {line}") and len(last) <= 80
    assert f"--dtype {report.to_dict()['recommended']['policy']} " in last


AVX512 = {**CPU, "flags": "avx2 avx512f", "cpu_bfloat16": False}


@pytest.mark.parametrize("name, value, harmed, others", [
    ("MXNET_FC_TRUE_FP16", "1", ([VOLTA], {}), [([], CPU), ([VOLTA], {"cuda": False})]),
    ("OMP_WAIT_POLICY", "ACTIVE", ([], CPU), []),
    ("GLUON_AMP_NATIVE", "0", ([], CPU), [([], {**CPU, "compiler": None})]),
    ("GLUON_AMP_BFLOAT16", "emulated", ([], CPU), [([], AVX512), ([], {**CPU, **NO_AVX512})]),
    ("GLUON_AMP_BFLOAT16", "native", ([], AVX512), [([], CPU), ([], {**CPU, **NO_AVX512})]),
])  # fmt: skip
def test_values_that_hurt_are_warned_of_where_they_do(
    pretend, monkeypatch, name, value, harmed, others
):
    pretend(*harmed[0], **harmed[1])
    assert "WARNING" not in str(amp.doctor())
    monkeypatch.setenv(name, value)
    report = amp.doctor()
    (setting,) = (each for each in report.to_dict()["environment"] if each["name"] == name)
    assert setting["value"] == value and f"{name}: {value}" in str(report)
    assert setting["warning"] and f"WARNING: {setting['warning']}" in joined(report)
    for gpus, options in others:
        pretend(*gpus, **options)
        monkeypatch.setenv(name, value)
        assert "WARNING" not in str(amp.doctor())


@pytest.mark.parametrize("options, variable, value, advice", [
    ({**AVX512, "native": False}, "CXX", "", "run `gluon-amp build`, which shows why"),
    ({**AVX512, "native": False}, "GLUON_AMP_NATIVE", "0", "unset GLUON_AMP_NATIVE"),
    ({**CPU, "native": False, "compiler": None}, "CXX", "", "install a C++ compiler"),
    ({**CPU, **FORBIDDEN}, "DNNL_MAX_CPU_ISA", "AVX2", "of this CPU: unset DNNL_MAX_CPU_ISA."),
])  # fmt: skip
def test_the_advice_is_what_helps(pretend, monkeypatch, options, variable, value, advice):
    pretend(**options)
    monkeypatch.setenv(variable, value)
    assert advice in joined(amp.doctor())


class Library:
    """Stands in for the driver's library, with two GPUs or an error."""

    def __init__(self, status=0):
        self.status = status

    def cuInit(self, flags):  # noqa: N802
        return self.status

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, device, number):  # noqa: N802
        device._obj.value = 7 + number

    def cuDeviceGetName(self, name, size, device):  # noqa: N802
        name.value = f"GPU {device.value}".encode()

    def cuDeviceGetAttribute(self, value, attribute, device):  # noqa: N802
        value._obj.value = {75: device.value, 76: 5}[attribute]


def test_the_driver_lists_its_gpus(monkeypatch):
    monkeypatch.setattr(detection.ctypes, "CDLL", lambda name: Library())
    assert detection.read_driver() == Driver(True, [Gpu("GPU 7", (7, 5)), Gpu("GPU 8", (8, 5))])
    monkeypatch.setattr(detection.ctypes, "CDLL", lambda name: Library(100))  # no device
    assert detection.read_driver() == Driver(True, [])
    monkeypatch.undo()
    monkeypatch.setattr(detection, "DRIVER", "libno_such_driver.so")
    assert detection.read_driver() == Driver(False, [])
