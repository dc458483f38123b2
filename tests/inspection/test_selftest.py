"""The self-test: every check runs on this CPU, and a wrong result is reported, not raised."""

import json

import pytest

from gluon_amp import kernels
from gluon_amp.inspection import selftest as module
from gluon_amp.inspection.selftest import Check, checks_of, selftest, steps_and_a_skip
from gluon_amp.training.console.doctor import main

import mxnet as mx


def test_every_check_is_ok_on_this_cpu():
    report = selftest("cpu")
    found = {result.name: result.status for result in report.results}
    with_kernels = "ok" if kernels.available() else "differs"
    assert found.pop("C++ kernels") == with_kernels
    assert len(found) == 5 and {*found.values()} == {"ok"}, "\n".join(map(str, report.results))


def test_a_gpu_has_no_kernels_of_ours_and_adds_in_float16():
    on_gpu = {check.name: check for check in checks_of(mx.gpu(0))}
    assert "C++ kernels" not in on_gpu
    assert on_gpu["MXNet is built with"].expected == "CUDNN"
    assert on_gpu["sums of products"].expected.endswith("dot float32, batch_dot float16")


def raising(ctx):
    raise mx.MXNetError("[22:00:00] cuda.cc:12: Check failed: no kernel image is available\nStack")


FORGED = [
    Check("right", lambda ctx: "1", "1"),
    Check("worth knowing", lambda ctx: "not in use", "in use", "a compiler", required=False),
    Check("wrong", lambda ctx: "2 arrays differ", "0 arrays differ", "law 2"),
    Check("raising", raising, "1"),
]


def test_a_check_that_fails_or_raises(monkeypatch, capsys):
    monkeypatch.setattr(module, "checks_of", lambda ctx: FORGED)
    assert main(["--selftest", "--device", "cpu"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok       right: 1",
        "differs  worth knowing: not in use (expected: in use; a compiler)",
        "failed   wrong: 2 arrays differ (expected: 0 arrays differ; law 2)",
        "failed   raising: MXNetError: no kernel image is available (expected: 1)",
        "",
        "Of 4 checks on cpu(0), in 0 s, 1 differ (worth knowing) and 2 failed (wrong;",
        "raising).",
    ]
    monkeypatch.setattr(module, "checks_of", lambda ctx: FORGED[:2])  # a difference is no failure
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


def test_the_check_of_a_skip_sees_a_changed_weight(monkeypatch):
    step = module.Trainer.step

    def step_and_write(trainer, *arguments):
        report = step(trainer, *arguments)
        for parameter in trainer.parameters if not report.applied else ():
            if parameter.grad_req != "null":
                parameter.set_data(parameter.data() + 1)
        return report

    monkeypatch.setattr(module.Trainer, "step", step_and_write)
    assert steps_and_a_skip(mx.cpu()) != "1 skip, 0 arrays differ"
