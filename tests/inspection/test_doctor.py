"""The doctor on this machine, and on machines with other GPUs, which are data."""

import json
import os
import subprocess
import sys

import pytest

import gluon_amp as amp
from gluon_amp.inspection.doctor import advice, detection, environment
from gluon_amp.inspection.doctor.detection import Driver, Gpu, Machine
from gluon_amp.training.console.doctor import main
from tests import ROOT

import mxnet as mx

PASCAL = Gpu("Tesla P40", (6, 1))
VOLTA = Gpu("Tesla V100-SXM2-16GB", (7, 0))
TURING = Gpu("Tesla T4", (7, 5))
A100 = Gpu("NVIDIA A100-SXM4-40GB", (8, 0))
AMPERE = Gpu("NVIDIA GeForce RTX 3090", (8, 6))
ADA = Gpu("NVIDIA L4", (8, 9))
HOPPER = Gpu("NVIDIA H100 80GB HBM3", (9, 0))

FAST = "runs MXNet, and float16 on Tensor Cores."
SLOW = (
    "runs MXNet, but has no Tensor Cores, which came with 7.0: float16 saves memory here, "
    "but hardly any time."
)
ON_TENSOR_CORES = "on Tensor Cores, which accumulate in float32; half of the memory."
TOO_NEW = (
    "cannot run MXNet's kernels (\"no kernel image is available\"): MXNet 1.9.1's wheels hold "
    "machine code for 5.0 to 8.9 and no PTX; use a GPU up to 8.9, or the CPU."
)
TOO_OLD = (
    "cannot run MXNet's kernels: it is older than MXNet 1.9.1's wheels, which hold machine code "
    "for 5.0 to 8.9; use a newer GPU, or the CPU."
)


def machine(*gpus, driver=True, cuda=True, flags="f16c avx2 avx512f avx512_bf16", **other):
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
        "cpu_bfloat16": True,
        "compiler": "g++",
        "native": True,
    }
    return Machine(**{**facts, **other})


@pytest.fixture
def pretend(monkeypatch):
    """Return a function that replaces this machine by another, without environment variables."""

    def become(*gpus, **options):
        monkeypatch.setattr(detection, "read_machine", lambda: machine(*gpus, **options))
        for variable in environment.VARIABLES:
            monkeypatch.delenv(variable.name, raising=False)

    return become


def run(*options, **variables):
    return subprocess.run(
        [sys.executable, "-m", "gluon_amp", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
    )


# ------------------------------------------------------------------------------ this machine


def test_this_machine_as_text():
    process = run("doctor", "--device", "cpu", "--policy", "float16")
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert lines[0] == (
        f"Python  {detection.platform.python_version()}, numpy {detection.np.__version__}, "
        f"{detection.platform.system()} {detection.platform.machine()}"
    )
    assert lines[1].startswith("MXNet   1.9.1 (mxnet")
    assert "Policies on the CPU" in lines
    assert any(line.split()[:2] == ["float16", "runs"] for line in lines)
    assert max(map(len, lines)) <= 80


def test_this_machine_as_json():
    process = run("doctor", "--json", "--device", "cpu", MXNET_SAFE_ACCUMULATION="1")
    report = json.loads(process.stdout)
    assert process.returncode == 0 and report["ok"] is True and report["asked"] is None
    assert report["mxnet"] == mx.__version__ and report["device"] == "cpu"
    assert report["cuda_build"] is mx.runtime.Features().is_enabled("CUDA")
    assert [item["policy"] for item in report["policies"]] == [
        "float32",
        "float16",
        "mixed_float16",
        "bfloat16",
    ]
    values = {item["name"]: item["value"] for item in report["environment"]}
    assert values["MXNET_SAFE_ACCUMULATION"] == "1" and values["MXNET_FC_TRUE_FP16"] is None


def test_a_gpu_that_is_not_there_cannot_run_anything():
    if detection.read_driver().gpus:
        pytest.skip("this machine has a GPU")
    process = run("doctor", "--policy", "float32", "--device", "gpu")
    assert process.returncode == 1
    assert process.stdout.endswith(
        "Policy float32 cannot run here: There is no GPU to use: no NVIDIA driver here\n"
        "(libcuda.so.1 is not found).\n"
    )


@pytest.mark.parametrize(
    "variables", [{"DNNL_MAX_CPU_ISA": "AVX2"}, {"GLUON_AMP_BFLOAT16": "emulated"}], ids=str
)
def test_bfloat16_without_avx512_is_emulated(variables):
    process = run("doctor", "--policy", "bfloat16", "--device", "cpu", **variables)
    assert process.returncode == 0, process.stdout
    assert "Policy bfloat16 can run here: emulated, slower than float32" in process.stdout


def test_a_misspelt_policy_is_one_sentence_and_status_2():
    process = run("doctor", "--policy", "flot16")
    assert process.returncode == 2 and process.stdout == ""
    assert process.stderr == (
        "python -m gluon_amp doctor: Unknown policy 'flot16' (did you mean 'float16' or 'bfloat16' "
        "or 'mixed_float16'?): expected one of float32, float16, mixed_float16, bfloat16, "
        "mixed_bfloat16, or a string like 'params=float16,compute=float16'.\n"
    )


def test_help_fits_a_terminal():
    process = run("doctor", "--help", COLUMNS="80")
    assert process.returncode == 0 and max(map(len, process.stdout.splitlines())) <= 80
    assert "exit status is 1 if the requested policy cannot run" in process.stdout


def test_reading_needs_no_gpu_and_no_proc():
    assert amp.hardware.cpu_name() and isinstance(amp.hardware.cpu_flags(), frozenset)
    assert isinstance(detection.read_driver(), Driver)


# ------------------------------------------------------------------------- machines with GPUs


@pytest.mark.parametrize(
    "gpu, kind, advice_, status",
    [
        (PASCAL, "Pascal 6.1", SLOW, 0),
        (VOLTA, "Volta 7.0", FAST, 0),
        (TURING, "Turing 7.5", FAST, 0),
        (A100, "Ampere 8.0", FAST, 0),
        (AMPERE, "Ampere 8.6", FAST, 0),
        (ADA, "Ada 8.9", FAST, 0),
        (HOPPER, "Hopper 9.0", TOO_NEW, 1),
        (Gpu("NVIDIA B200", (10, 0)), "Blackwell 10.0", TOO_NEW, 1),
        (Gpu("NVIDIA RTX 5090", (12, 0)), "Blackwell 12.0", TOO_NEW, 1),
        (Gpu("Tesla M40", (5, 2)), "Maxwell 5.2", SLOW, 0),
        (Gpu("Tesla K80", (3, 7)), "Kepler or earlier 3.7", TOO_OLD, 1),
    ],
)
def test_each_generation(pretend, capsys, gpu, kind, advice_, status):
    pretend(gpu)
    assert main(["--policy", "float16"]) == status
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    joined = " ".join(printed.split())
    assert f"GPU 0 {gpu.name} ({kind}): {advice_}" in joined
    assert "Policies on the GPU" in printed
    report = amp.doctor("float16")
    assert report.ok is (status == 0)
    assert report.to_dict()["gpus"] == [
        {
            "name": gpu.name,
            "capability": kind.split()[-1],
            "generation": kind.rpartition(" ")[0],
            "runs": status == 0,
            "tensor_cores": gpu.capability >= (7, 0),
            "advice": advice_,
        }
    ]


@pytest.mark.parametrize(
    "gpu, policy, runs, how",
    [
        (VOLTA, "float16", True, ON_TENSOR_CORES),
        (VOLTA, "float32", True, "by cuDNN and cuBLAS."),
        (
            VOLTA,
            "bfloat16",
            False,
            "MXNet 1.9.1 has no bfloat16 kernels for GPUs: use float16 or mixed_float16, or the "
            "CPU.",
        ),
        (
            PASCAL,
            "mixed_float16",
            True,
            "without Tensor Cores on Tesla P40: about as fast as float32, half of the memory.",
        ),
        (HOPPER, "float32", False, f"NVIDIA H100 80GB HBM3 {TOO_NEW}"),
        (HOPPER, "bfloat16", False, f"NVIDIA H100 80GB HBM3 {TOO_NEW}"),
        (ADA, "params=float16,compute=float16", True, ON_TENSOR_CORES),
    ],
)
def test_how_a_policy_runs_on_a_gpu(pretend, gpu, policy, runs, how):
    pretend(gpu)
    report = amp.doctor(policy)
    assert {outcome.policy: (outcome.runs, outcome.how) for outcome in report.outcomes}[policy] == (
        runs,
        how,
    )
    assert report.ok is runs


def test_one_able_gpu_is_enough_and_the_slow_one_is_named(pretend):
    pretend(HOPPER, PASCAL)
    assert amp.doctor("float16").ok
    pretend(VOLTA, PASCAL)
    how = amp.doctor().outcomes[1].how
    assert how == (
        "without Tensor Cores on Tesla P40: about as fast as float32, half of the memory."
    )


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"driver": False}, "no NVIDIA driver here (libcuda.so.1 is not found)."),
        (
            {"driver": True},
            "the NVIDIA driver finds no GPU; see CUDA_VISIBLE_DEVICES and `nvidia-smi`.",
        ),
    ],
)
def test_a_cuda_wheel_without_a_gpu(pretend, options, sentence):
    pretend(**options)
    report = amp.doctor("float16")
    assert report.device == "cpu" and report.ok  # emulated
    assert f"GPU {sentence}" in " ".join(str(report).split())
    on_gpu = amp.doctor("float16", device="gpu")
    assert not on_gpu.ok and on_gpu.outcomes[1].how == f"There is no GPU to use: {sentence}"


def test_a_gpu_that_a_cpu_wheel_leaves_idle(pretend):
    pretend(VOLTA, cuda=False)
    report = amp.doctor()
    assert report.device == "cpu"
    assert (
        "GPU MXNet is installed for CPUs only and uses no GPU: run `pip uninstall mxnet`, then "
        "`pip install 'gluon-amp[cu117]'`."
    ) in " ".join(str(report).split())


# -------------------------------------------------------------------------------- CPUs


@pytest.mark.parametrize(
    "policy, options, runs, how",
    [
        ("float32", {}, True, "by oneDNN, on all cores."),
        (
            "float16",
            {},
            True,
            "emulated by C++ kernels: the roundings of float16, about as fast as float32.",
        ),
        (
            "float16",
            {"native": False, "compiler": None},
            True,
            "emulated by MXNet's own operators, several times slower than float32: install a C++ "
            "compiler (`apt-get install g++`).",
        ),
        (
            "bfloat16",
            {"flags": "amx_tile amx_bf16 avx512_bf16"},
            True,
            "by oneDNN, with AMX if Linux permits it (5.16 or later).",
        ),
        (
            "bfloat16",
            {},
            True,
            "by oneDNN with AVX512_BF16: two products in the time of one of float32.",
        ),
        (
            "bfloat16",
            {"flags": "avx2 avx512f"},
            True,
            "by oneDNN with AVX512, but without AVX512_BF16: saves memory, not time.",
        ),
        (
            "bfloat16",
            {"flags": "avx2 f16c", "cpu_bfloat16": False},
            True,
            "emulated, slower than float32: the roundings of bfloat16, but this CPU has no AVX512 "
            "that oneDNN may use (see DNNL_MAX_CPU_ISA, MXNET_MKLDNN_ENABLED and "
            "GLUON_AMP_BFLOAT16). float32 with amp.Trainer trains fastest here.",
        ),
        (
            "bfloat16",
            {"flags": "avx2 f16c", "cpu_bfloat16": False, "native": False},
            False,
            "oneDNN has no bfloat16 kernels on this CPU, and emulating it takes the C++ kernels: "
            "install a C++ compiler (`apt-get install g++`), or use float16.",
        ),
    ],
)
def test_how_a_policy_runs_on_a_cpu(pretend, policy, options, runs, how):
    pretend(driver=False, cuda=False, **options)
    report = amp.doctor(policy)
    assert {outcome.policy: (outcome.runs, outcome.how) for outcome in report.outcomes}[policy] == (
        runs,
        how,
    )
    assert report.ok is runs


@pytest.mark.parametrize(
    "load, cores, warns",
    [(2.1, 2, True), (2.0, 2, False), (None, 2, False), (9.0, 0, False), (9.0, 64, False)],
)
def test_a_load_above_the_cores_is_warned_of(pretend, load, cores, warns):
    pretend(load=load, all_cores=cores)
    report = amp.doctor()
    warning = (
        f"the load, {load}, exceeds the {cores} cores of this machine: threads of MXNet wait for "
        "each other while other programs run, and a step takes several times as long. Close them, "
        "or give MXNet fewer threads (OMP_NUM_THREADS)."
    )
    assert (f"WARNING: {warning}" in " ".join(str(report).split())) is warns
    assert ("WARNING" in str(report)) is warns
    cpu = report.to_dict()["cpu"]
    assert (cpu["load"], cpu["warning"]) == (load, warning if warns else None)


def test_cpu_features_need_all_their_flags(pretend):
    pretend(flags="f16c amx_tile avx512f")
    assert advice.cpu_features(detection.read_machine()) == ["F16C", "AVX512"]
    assert amp.doctor().to_dict()["cpu"]["features"] == ["F16C", "AVX512"]


def test_the_whole_report_of_a_machine(pretend):
    pretend(VOLTA)
    text = str(amp.doctor("bfloat16"))
    head, _, rest = text.partition("\n\nEnvironment variables that are set: none that matters\n")
    assert head == (
        "Python  3.11.7, numpy 1.23.5, Linux x86_64\n"
        "MXNet   1.9.1 (mxnet-cu117), with CUDA\n"
        "CPU     AMD EPYC 9R14, 2 cores\n"
        "        F16C, AVX2, AVX512, AVX512_BF16\n"
        "        C++ compiler: g++; C++ kernels: in use\n"
        "GPU 0   Tesla V100-SXM2-16GB (Volta 7.0): runs MXNet, and float16 on Tensor\n"
        "        Cores.\n"
        "\n"
        "Policies on the GPU\n"
        "  float32        runs       by cuDNN and cuBLAS.\n"
        "  float16        runs       on Tensor Cores, which accumulate in float32; half\n"
        "                            of the memory.\n"
        "  mixed_float16  runs       on Tensor Cores, which accumulate in float32; half\n"
        "                            of the memory.\n"
        "  bfloat16       CANNOT RUN MXNet 1.9.1 has no bfloat16 kernels for GPUs: use\n"
        "                            float16 or mixed_float16, or the CPU."
    )
    assert rest == (
        "\nPolicy bfloat16 cannot run here: MXNet 1.9.1 has no bfloat16 kernels for GPUs:\n"
        "use float16 or mixed_float16, or the CPU."
    )


# ------------------------------------------------------------------- environment variables


def test_variables_that_are_not_set_are_for_verbose(monkeypatch):
    monkeypatch.setenv("MXNET_SAFE_ACCUMULATION", "1")
    monkeypatch.delenv("MXNET_FC_TRUE_FP16", raising=False)
    report = amp.doctor()
    brief, verbose = str(report), report.text(verbose=True)
    assert "Environment variables that are set\n" in brief
    assert "MXNET_SAFE_ACCUMULATION: 1" in brief and "MXNET_FC_TRUE_FP16" not in brief
    assert "Environment variables (-: not set)\n" in verbose
    assert "MXNET_SAFE_ACCUMULATION: 1" in verbose and "MXNET_FC_TRUE_FP16: -" in verbose


def test_the_command_has_verbose(capsys):
    assert main(["--verbose"]) == main([]) == 0
    assert capsys.readouterr().out.count("MXNET_FC_TRUE_FP16: -") == 1


@pytest.mark.parametrize(
    "name, value, warning",
    [
        (
            "MXNET_CUDA_ALLOW_TENSOR_CORE",
            "0",
            "float16 will be slow, since Tensor Cores are turned off: unset it.",
        ),
        (
            "MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION",
            "1",
            "float32 is no longer float32: unset it, and use a float16 policy.",
        ),
        ("MXNET_FC_TRUE_FP16", "1", "sums in FullyConnected overflow past 65504: unset it."),
        (
            "MXNET_CUDNN_AUTOTUNE_DEFAULT",
            "0",
            "convolutions may use a slow algorithm without Tensor Cores: unset it.",
        ),
        (
            "MXNET_MKLDNN_ENABLED",
            "0",
            "bfloat16 is emulated, and float32 is slow: unset it.",
        ),
        (
            "GLUON_AMP_NATIVE",
            "0",
            "emulated float16 is several times slower without the C++ kernels: unset it.",
        ),
        (
            "GLUON_AMP_BFLOAT16",
            "emulated",
            "bfloat16 is slower than by oneDNN's kernels: unset it.",
        ),
        (
            "OMP_WAIT_POLICY",
            "ACTIVE",
            "a step takes several times as long while other programs run: unset it there.",
        ),
    ],
)
def test_values_that_hurt_are_warned_of(pretend, monkeypatch, name, value, warning):
    pretend()
    assert "WARNING" not in str(amp.doctor())
    monkeypatch.setenv(name, value)
    assert f"{name}: {value}" in str(amp.doctor())
    assert f"WARNING: {warning}" in " ".join(str(amp.doctor()).split())
    settings = {setting["name"]: setting for setting in amp.doctor().to_dict()["environment"]}
    assert settings[name]["value"] == value and settings[name]["warning"] == warning


def test_no_variable_is_listed_twice_and_each_has_its_sentence():
    names = [variable.name for variable in environment.VARIABLES]
    assert len(names) == len(set(names))
    assert all(variable.does.endswith(".") for variable in environment.VARIABLES)


# ----------------------------------------------------------------------------- reading


def test_nvidia_smi_is_read_and_nonsense_is_not():
    printed = (
        "Tesla V100-SXM2-16GB, 7.0\n"
        "NVIDIA GeForce GTX, odd name, 8.6\n"
        "NVIDIA-SMI has failed\n"
        "Tesla K80, [N/A]\n"
    )
    assert detection.parse_nvidia_smi(printed) == [
        VOLTA,
        Gpu("NVIDIA GeForce GTX, odd name", (8, 6)),
    ]


def test_nvidia_smi_runs_if_the_library_is_missing(tmp_path, monkeypatch):
    if detection.read_driver().found:
        pytest.skip("this machine has a driver")
    assert detection.read_driver() == Driver(False, [])
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Tesla T4, 7.5'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert detection.read_driver() == Driver(True, [TURING])
    program.write_text("#!/bin/sh\necho 'has failed'; exit 9\n")
    assert detection.read_driver() == Driver(False, [])


def test_a_wrong_device_is_one_sentence():
    with pytest.raises(ValueError) as error:
        amp.doctor(device="tpu")
    assert str(error.value) == "doctor() got the device 'tpu', expected 'gpu' or 'cpu'."


@pytest.mark.parametrize(
    "name, has",
    [
        ("NVIDIA GeForce GTX 1650", False),
        ("NVIDIA GeForce GTX 1660 Ti", False),
        ("Quadro T1000", False),
        ("Tesla T4", True),
        ("NVIDIA GeForce RTX 2060", True),
    ],
)
def test_turing_without_tensor_cores_is_known_by_name(name, has):
    assert advice.has_tensor_cores(Gpu(name, (7, 5))) == has
