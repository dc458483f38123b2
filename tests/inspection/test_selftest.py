"""The self-test: every check runs on this CPU, and a wrong result is reported, not raised."""

import json

import pytest

from gluon_amp.inspection import selftest as room
from gluon_amp.inspection.selftest import Check, checks, laws, numerics, selftest, speed
from gluon_amp.trainer import scaled_steps
from gluon_amp.training.console.doctor import main

import mxnet as mx

CPU = mx.cpu(0)
TABLE = checks.checks_of(CPU)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(speed, "STEPS", 1)
    monkeypatch.setattr(speed, "WARM_UP", 0)
    monkeypatch.setattr(speed, "RESNET", {"cpu": ((8, 4, 4), 8, 1)})
    monkeypatch.setattr(speed, "DENSE", {"cpu": (8, 1)})


@pytest.mark.parametrize("check", TABLE, ids=lambda check: check.name)
def test_every_check_is_ok_on_this_cpu(check):
    (result,) = selftest("cpu", table=[check]).results
    assert (result.status, result.name) == ("ok", check.name), result.measured


def test_no_two_checks_have_the_same_name():
    names = [check.name for check in TABLE]
    assert len(set(names)) == len(names)


def test_a_gpu_has_no_bfloat16_and_a_kernel_of_its_own_for_batch_dot(monkeypatch):
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 1)
    on_gpu = {check.name: check for check in checks.checks_of(mx.gpu(0))}
    assert not [name for name in on_gpu if "bfloat16" in name or "2 devices" in name]
    assert on_gpu["batch_dot accumulates in"].expected == "float16"
    assert (
        on_gpu["speed of float16 on a dense net"].agrees("0.99 times (3 ms)", "1 or more") is False
    )
    speed_of_dense = on_gpu["speed of float16 on a dense net"]
    assert not speed_of_dense.agrees("0.99 times (3 ms)", "1 or more")
    assert speed_of_dense.agrees("1.01 times (3 ms)", "1 or more")


def raising(ctx):
    raise mx.MXNetError("[22:00:00] cuda.cc:12: Check failed: no kernel image is available\nStack")


FORGED = [
    Check("right", lambda ctx: "1", "1", ""),
    Check("worth knowing", lambda ctx: "0.4 times", "1 or more", "Tensor Cores", required=False),
    Check("wrong", lambda ctx: "2 arrays differ", "0 arrays differ", "law 2"),
    Check("raising", raising, "1", ""),
]


def test_a_check_that_fails_or_raises(monkeypatch, capsys):
    monkeypatch.setattr(room, "checks_of", lambda ctx: FORGED)
    assert main(["--selftest", "--device", "cpu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "ok       right: 1",
        "differs  worth knowing: 0.4 times (expected: 1 or more; Tensor Cores)",
        "failed   wrong: 2 arrays differ (expected: 0 arrays differ; law 2)",
        "failed   raising: MXNetError: no kernel image is available (expected: 1)",
        "",
        "Of 4 checks on cpu(0), in 0 s, 1 differ (worth knowing) and 2 failed (wrong;",
        "raising).",
    ]


def test_a_difference_is_no_failure():
    assert selftest("cpu", table=FORGED[:2]).ok
    assert not selftest("cpu", table=FORGED[:3]).ok


def test_json(monkeypatch, capsys):
    monkeypatch.setattr(room, "checks_of", lambda ctx: FORGED[:3])
    assert main(["--selftest", "--json", "--device", "cpu"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["device"]) == (False, "cpu(0)")
    assert [check["status"] for check in report["checks"]] == ["ok", "differs", "failed"]
    assert report["checks"][2]["measured"] == "2 arrays differ"


@pytest.mark.skipif(mx.context.num_gpus() > 0, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_sentence(capsys):
    assert main(["--selftest", "--device", "gpu"]) == 2
    assert "found no GPU that MXNet can use" in capsys.readouterr().err


def test_an_unknown_device():
    with pytest.raises(ValueError, match="expected 'gpu' or 'cpu'"):
        selftest("tpu")


# Each law is broken once, to see that its check can fail.


def test_the_check_of_a_skip_sees_a_changed_weight(monkeypatch):
    skip = scaled_steps.ScaledSteps._skip

    def skip_and_write(trainer):
        skip(trainer)
        parameter = next(p for p in trainer._params if p.grad_req != "null")
        parameter.set_data(parameter.data() + 1)

    monkeypatch.setattr(scaled_steps.ScaledSteps, "_skip", skip_and_write)
    assert laws.skip_undoes(CPU) != "0 arrays differ"


def test_the_check_of_infinities_sees_a_blind_one(monkeypatch):
    monkeypatch.setattr(numerics, "all_finite", lambda arrays: True)
    assert numerics.overflow_check(CPU) == "4 missed"


def test_the_check_of_rounding_sees_truncation(monkeypatch):
    real = mx.nd.array

    class Truncated:
        def __init__(self, values, ctx):
            bits = values.view("uint32") & 0xFFFFE000
            self.values = real(bits.view("float32"), ctx=ctx)

        def astype(self, dtype):
            return self.values.astype(dtype)

    monkeypatch.setattr(numerics.nd, "array", Truncated)
    count = int(numerics.rounding(CPU).split()[0])
    assert count > 30000
