"""Does mixed precision work on this device? See `selftest`."""

import time
from typing import Callable, List, Optional

from gluon_amp.base.messages import reason_of
from gluon_amp.inspection.selftest.checks import Check, checks_of
from gluon_amp.inspection.selftest.report import Report, Result

import mxnet as mx

__all__ = ["Check", "Report", "Result", "selftest", "show_selftest"]


def selftest(
    device: Optional[str] = None, on_result: Callable[[Result], None] = lambda result: None
) -> Report:
    """Check laws, arithmetic, speed and memory of mixed precision on a device, in minutes.

    The device is 'gpu' or 'cpu', by default the GPU if MXNet sees one. `on_result` is called with
    the result of each check as soon as it has run. Raise `ValueError` for an unknown device, or a
    GPU where MXNet sees none.
    """
    gpus = mx.context.num_gpus()
    if device not in (None, "gpu", "cpu"):
        raise ValueError(f"selftest() got the device {device!r}, expected 'gpu' or 'cpu'.")
    if device == "gpu" and not gpus:
        raise ValueError("the self-test found no GPU that MXNet can use: see `doctor`.")
    ctx = mx.gpu(0) if device != "cpu" and gpus else mx.cpu(0)
    start = time.perf_counter()
    results: List[Result] = []
    for check in checks_of(ctx):
        results.append(_run(check, ctx))
        on_result(results[-1])
    return Report(str(ctx), results, time.perf_counter() - start)


def show_selftest(device: Optional[str] = None, as_json: bool = False) -> int:
    """Run the self-test, print its results, and return 1 if a check failed, else 0.

    Each result is printed as soon as there is one, or all of them as JSON.
    """
    if as_json:
        report = selftest(device)
        print(report.to_json())
    else:
        report = selftest(device, on_result=lambda result: print(result, flush=True))
        print(f"\n{report.conclusion}")
    return 0 if report.ok else 1


def _run(check: Check, ctx: mx.Context) -> Result:
    start = time.perf_counter()
    try:
        with ctx:
            measured = check.measure(ctx)
        status = "ok" if check.agrees(measured) else "failed" if check.required else "differs"
    except Exception as error:  # one check that cannot run does not end the others
        status, measured = "failed", f"{type(error).__name__}: {reason_of(error)}"
    seconds = time.perf_counter() - start
    return Result(check.name, status, measured, check.expected, check.source, seconds)
