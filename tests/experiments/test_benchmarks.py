"""Benchmarks: small suites as processes, and tables, ratios and counts from literal values."""

import json
import math
import sys

import pytest

from experiments.benchmarks import command, families, limit, profile, report, work
from experiments.benchmarks.suites import DTYPES, REFERENCE, SUITES, build_suite

import mxnet as mx
from mxnet.gluon import nn, rnn

SMALL = (
    "--networks mobilenet0.25 --batch-size 2 --pixels 32 --rounds 2 --threads 1 --dtypes float32"
)


@pytest.fixture
def benchmark(monkeypatch, capfd):
    """Run scripts/benchmark.py; return its status and what it printed."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments):
        status = command.main([str(word) for word in arguments])
        return (status, *capfd.readouterr())

    return run


# -------------------------------------------------------------------------------- what is measured


@pytest.mark.parametrize("name", SUITES)
def test_labels_are_unique_and_ratios_name_them(name):
    suite = build_suite(name, DTYPES, **REFERENCE)
    labels = [one.label for one in suite.cases]
    assert len(set(labels)) == len(labels) > 1
    assert {end for ratio in suite.ratios for end in (ratio.over, ratio.under)} <= set(labels)
    one = build_suite(name, ["float32"], **REFERENCE)
    assert {case.dtype for case in one.cases} == {"float32"}


def test_a_small_suite_writes_its_page(benchmark, tmp_path):
    status, out, err = benchmark(*SMALL.split(), "float16", "--output", tmp_path)
    assert status == 0, err
    result = json.loads((tmp_path / "step_mobilenet0.25.json").read_text())
    cases = {one["label"]: one for one in result["cases"]}
    assert list(cases) == ["float32", "float16", "float16, no loss scale", "float32, 64 px"]
    # Model Zoo's table: 0.47 million for mobilenet0.25
    assert {one["parameters"] for one in cases.values()} == {470072}
    assert all(len(one["seconds"]) == 2 and one["peak_mebibytes"] > 100 for one in cases.values())
    ratio = result["ratios"][0]
    over, under = (cases[ratio[end]]["seconds"] for end in ("over", "under"))
    assert ratio["values"] == [a / b for a, b in zip(over, under)]
    part = report.part(result, report.ratio_table(result), "step.png")
    assert "![Training step, mobilenet0.25, batch 2, 32 px](step.png)" in part
    assert f"2 rounds, `{result['command']}`: " in part and "speed, higher is better" in out
    assert (tmp_path / "step_mobilenet0.25.png").read_bytes().startswith(b"\x89PNG")


# It answers as `peer_torch` does.
PEER = f"""#!{sys.executable}
import json, sys
from multiprocessing.connection import Connection
if sys.argv[1] == "-c":
    print("PyTorch 0.0, torchvision 0.0")
    sys.exit()
case, connection = json.loads(sys.argv[3]), Connection(int(sys.argv[4]))
if case["work"] == "infer":
    connection.send(case["label"] + ": no such network")
    sys.exit()
connection.send(None)
for number in iter(connection.recv, None):
    connection.send(number * [0.25])
connection.send({{"mebibytes": 50.0, "parameters": 3}})
"""


@pytest.fixture
def peer(tmp_path):
    path = tmp_path / "python"
    path.write_text(PEER)
    path.chmod(0o755)
    return path


def test_small_families_beside_a_peer(benchmark, tmp_path, peer, monkeypatch):
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "AVX2")
    words = [*SMALL.split(), "--suite", "families", "--peer-python", peer, "--output", tmp_path]
    status, out, err = benchmark(*words)
    assert status == 0, err
    result = json.loads((tmp_path / "families-avx2.json").read_text())
    assert {"avx512f", "amx_bf16"}.isdisjoint(result["machine"]["instructions"])
    names = ("training, float32", "training, float32, amp.Trainer", "training, fused_float32")
    names += ("training, PyTorch float32", "training, torch.compile float32")
    names += ("inference, float32", "inference, fused_float32")
    names += ("image, float32", "image, fused_float32")
    assert [one["label"] for one in result["cases"]] == [f"mobilenet0.25, {n}" for n in names]
    failed = "mobilenet0.25, image, PyTorch float32"
    assert result["left_out"][failed] == f"{failed}: no such network"
    assert str(peer) not in result["command"] and "--peer-python PYTHON" in result["command"]
    assert (tmp_path / "families-avx2.png").read_bytes().startswith(b"\x89PNG")
    tables = families.tables(result)
    assert tables in out and "| 250.0 |" in tables and "PyTorch 0.0" in result["machine"]["peer"]
    assert families.memory(result).splitlines()[-1].startswith("| mobilenet0.25 | ")


def test_without_instructions_only_ours_is_measured_in_bfloat16():
    suite = families.families(["resnet18_v1"], ["bfloat16"], peer=True, native=False)
    assert {(case.library, case.dtype) for case in suite.cases} == {("gluon_amp", "bfloat16")}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("unet", 227012),
        # four gates: input, state and two biases; twice, and embedding and head
        ("lstm", 4 * 512 * (256 + 3 * 512 + 4) + 2000 * (256 + 512 + 1)),
        # a layer: two norms, four projections, two dense layers; a norm, embedding and head
        ("transformer", 4 * (12 * 256**2 + 13 * 256) + 2 * 256 + 2000 * (2 * 256 + 1)),
    ],
)
def test_a_network_that_is_built_here_is_trained(name, parameters):
    suite = families.families([name], ["float32"], peer=True, batch=2, pixels=8)
    (cases,) = suite.groups
    assert [case.label.partition(", ")[2] for case in cases] == [
        "training, float32",
        "training, float32, amp.Trainer",
        "training, fused_float32",
        "training, PyTorch float32",
        "training, torch.compile float32",
    ]
    assert {case.optimizer for case in cases} == {"adam"}
    sizes = [p.shape for p in work.trained(work.shaped_network(cases[1])).values()]
    assert sum(math.prod(shape) for shape in sizes) == parameters
    assert work.train(cases[1])().applied


@pytest.mark.parametrize(
    ("make", "shape", "forward", "step"),
    [
        # 5 × 7 results of 2 × 3 × 3 products for each of 4 filters; the data has no gradient
        (lambda: nn.Conv2D(4, 3, padding=1), (1, 2, 5, 7), 2520, 2 * 2520),
        (lambda: nn.Dense(4), (3, 5), 60, 2 * 60),
        (lambda: nn.Conv2DTranspose(4, 2, strides=2), (1, 3, 2, 5), 480, 2 * 480),
        # 6 tokens, 4 gates of 5, with 3 inputs, 5 states and two biases
        (lambda: rnn.LSTM(5), (2, 3, 3), 6 * 20 * 10, 2 * 6 * 20 * 10),
    ],
)
def test_products_are_counted(make, shape, forward, step):
    net, data = make(), mx.nd.ones(shape)
    net.initialize()
    net(data)
    assert [limit.count(net, data, trains) for trains in (False, True)] == [forward, step]


def test_the_time_of_the_products_is_beside_that_of_a_step():
    case = {"network": "n", "batch": 2, "pixels": 8, "products": 3e9}
    cases = [
        {**case, "label": f"n, training, {name}", "median_seconds": s, "seconds": [s]}
        for name, s in ((families.STOCK, 0.1), (families.FUSED, 0.05))
    ]
    table = families.networks(families.Results(cases), 1e11)
    assert table.splitlines()[-1] == "| n | 2 | 8 | 100.0 | 50.0 | 0.60 |"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--suite overflow_check --dtypes bfloat16", "overflow_check has nothing in bfloat16."),
        ("--networks resnet51 --dtypes float32 --rounds 1", "resnet51"),
        ("--suite families --peer-python /no/python", "/no/python: No such file"),
        ("--suite families --peer-python /bin/false", "cannot import torch and torchvision"),
    ],
)
def test_bad_input_ends_with_one_sentence(arguments, sentence, benchmark):
    status, _, err = benchmark(*arguments.split())
    assert status == 2 and sentence in err and err.count("\n") == 1


VERBOSE = """dnnl_verbose,exec,cpu,reorder,jit,undef,src_f32::blocked:a:f0 dst_bf16::b,,,64,9.0
begin
dnnl_verbose,exec,cpu,reorder,jit,undef,src_f32::blocked:a:f0 dst_bf16::b,,,64,0.5
dnnl_verbose,exec,cpu,convolution,amx,forward_training,src_bf16::a wei_bf16::x,,alg:direct,mb1,4.0
dnnl_verbose,exec,cpu,convolution,amx,forward_training,src_bf16::a wei_bf16::x,,alg:direct,mb2,6.0
end
{"Convolution": 7, "_gluon_amp_block": 2, "_backward_gluon_amp_unblock": 1, "_gluon_amp_norm": 4}
"""
KERNELS = """Processing [report]...
Time (%),Total Time (ns),Instances,Avg (ns),Name
60.0,30000000,5,6000000,volta_fp16_s884cudnn_fp16_128x128_ldg8
40.0,20000000,10,2000000,void mxnet::op::mxnet_op::mxnet_generic_kernel<...>
"""


def test_what_onednn_and_nsys_print_is_summed():
    counted = profile.reorders(VERBOSE)
    assert counted == (1, 3) and counted.total == 4
    entries = profile.onednn_primitives(VERBOSE.partition("{")[0])
    assert entries[0] == ("convolution forward_training, bf16, amx", 0.4, 2.0, False)
    assert "| convolution forward_training, bf16, amx | 2.00 | 95.2 % | 0.4 |" in profile.as_table(
        entries
    )
    kernels = profile.gpu_kernels(KERNELS)
    assert [one.tensor_cores for one in kernels] == [True, False]
    assert profile.as_table(kernels).endswith("\n10.00 ms in total, Tensor Core kernels 60.0 %.")
