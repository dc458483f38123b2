"""The self-test: every check runs on this CPU, and a wrong result is reported, not raised."""

import json

import pytest

from gluon_amp.inspection import selftest as room
from gluon_amp.inspection.selftest import Check, checks, laws, numerics, selftest, speed
from gluon_amp.trainer import ScaledTrainer
from gluon_amp.training.console.doctor import main

import mxnet as mx

CPU = mx.cpu(0)


def test_every_check_is_ok_on_this_cpu(monkeypatch):
    monkeypatch.setattr(speed, "STEPS", 1)
    monkeypatch.setattr(speed, "WARM_UP", 0)
    small = {"residual": ((8, 4, 4), 8, 1), "dense": ((8,), 8, 1)}
    nets = {name: (make, {"cpu": small[name]}) for name, (make, _) in speed.NETS.items()}
    monkeypatch.setattr(speed, "NETS", nets)
    report = selftest("cpu")
    assert report.ok and {result.status for result in report.results} == {"ok"}, str(report)
    assert len({result.name for result in report.results}) == len(report.results) > 20


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_gpu_has_no_bfloat16_and_a_kernel_of_its_own_for_batch_dot(monkeypatch, gpus):
    monkeypatch.setattr(mx.context, "num_gpus", lambda: gpus)
    on_gpu = {check.name: check for check in checks.checks_of(mx.gpu(0))}
    assert not [name for name in on_gpu if "bfloat16" in name]
    assert len([name for name in on_gpu if "2 devices" in name]) == gpus - 1
    assert on_gpu["batch_dot accumulates in"].expected == "float16"
    speed_of_dense = on_gpu["speed of float16 on a dense net"]
    assert not speed_of_dense.agrees("0.99 times (3 ms)")
    assert speed_of_dense.agrees("1.01 times (3 ms)")


def raising(ctx):
    raise mx.MXNetError("[22:00:00] cuda.cc:12: Check failed: no kernel image is available\nStack")


FORGED = [
    Check("right", lambda ctx: "1", "1"),
    Check("worth knowing", lambda ctx: "0.4 times", "1 or more", "Tensor Cores", required=False),
    Check("wrong", lambda ctx: "2 arrays differ", "0 arrays differ", "law 2"),
    Check("raising", raising, "1"),
]


def test_a_check_that_fails_or_raises(monkeypatch, capsys):
    monkeypatch.setattr(room, "checks_of", lambda ctx: FORGED)
    assert main(["--selftest", "--device", "cpu"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok       right: 1",
        "differs  worth knowing: 0.4 times (expected: 1 or more; Tensor Cores)",
        "failed   wrong: 2 arrays differ (expected: 0 arrays differ; law 2)",
        "failed   raising: MXNetError: no kernel image is available (expected: 1)",
        "",
        "Of 4 checks on cpu(0), in 0 s, 1 differ (worth knowing) and 2 failed (wrong;",
        "raising).",
    ]
    monkeypatch.setattr(room, "checks_of", lambda ctx: FORGED[:2])  # a difference is no failure
    assert main(["--selftest", "--json", "--device", "cpu"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["device"]) == (True, "cpu(0)")
    assert [check["status"] for check in report["checks"]] == ["ok", "differs"]


@pytest.mark.skipif(mx.context.num_gpus() > 0, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_sentence(capsys):
    assert main(["--selftest", "--device", "gpu"]) == 2
    assert "found no GPU that MXNet can use" in capsys.readouterr().err
    with pytest.raises(ValueError, match="expected 'gpu' or 'cpu'"):
        selftest("tpu")


# Checks whose laws are broken, to see that they can fail.


def test_the_check_of_a_skip_sees_a_changed_weight(monkeypatch):
    skip = ScaledTrainer._skip

    def skip_and_write(trainer):
        skip(trainer)
        parameter = next(p for p in trainer._params if p.grad_req != "null")
        parameter.set_data(parameter.data() + 1)

    monkeypatch.setattr(ScaledTrainer, "_skip", skip_and_write)
    assert laws.skip_undoes(CPU) != "0 arrays differ"


def test_the_check_of_infinities_sees_a_blind_one(monkeypatch):
    monkeypatch.setattr(numerics, "all_finite", lambda arrays: True)
    assert numerics.overflow_check(CPU) == "4 missed"
