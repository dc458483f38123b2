"""Law 3: one overflow is one skipped step and one backoff."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gluon_amp as amp
from tests.trainer.helpers import parameter, run
from tests.two_workers import run_two_workers

law = settings(deadline=None, derandomize=True, max_examples=12)


def test_a_closed_loop_skips_4_and_settles_at_4096():
    p = parameter("p", [0.0])
    scale = amp.DynamicLossScale(2.0**16)
    trainer = amp.Trainer([p], "sgd", {"learning_rate": 0.0}, loss_scale=scale)
    # 15.9 · 4096 fits into float16, 15.9 · 8192 does not
    reports = [run(trainer, [(p, [15.9])]) for _ in range(9)]
    assert [r.applied for r in reports] == [False] * 4 + [True] * 5
    assert [r.loss_scale for r in reports[:5]] == [65536.0, 32768.0, 16384.0, 8192.0, 4096.0]
    assert {r.next_loss_scale for r in reports[4:]} == {4096.0}


def test_before_the_first_finite_step_nothing_is_lost():
    p = parameter("p", [0.0])
    trainer = amp.Trainer([p], "sgd", {"learning_rate": 0.0}, loss_scale="dynamic")
    reports = [run(trainer, [(p, [15.9])]) for _ in range(9)]
    assert [(r.applied, r.retried) for r in reports] == [(True, True)] + [(True, False)] * 8
    # 3 bits below the largest scale that fits
    assert {r.loss_scale for r in reports} == {512.0}
    assert {r.skipped_total for r in reports} == {0}
    assert not run(trainer, [(p, [2.0**20])]).applied
    assert trainer.loss_scale.scale == 256.0


@law
@given(st.lists(st.booleans(), min_size=1, max_size=25), st.integers(1, 3))
def test_any_sequence_of_overflows(finites, interval):
    p = parameter("p", [1.0])
    options = {"init_scale": 2**8, "growth_interval": interval, "min_scale": 2.0**-30}
    loss_scale, twin = amp.DynamicLossScale(**options), amp.DynamicLossScale(**options)
    trainer = amp.Trainer([p], "sgd", loss_scale=loss_scale, max_consecutive_skips=100)
    skipped = 0
    for finite in finites:
        report = run(trainer, [(p, [0.0 if finite else np.inf])])
        skipped += not finite
        before = twin.scale
        twin.update(finite)
        assert report.applied == finite
        assert (report.loss_scale, report.next_loss_scale) == (before, twin.scale)
        assert report.skipped_total == skipped
        assert finite or twin.scale == before / 2


WORKER = """
import json, sys
import gluon_amp
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from gluon_amp.trainer import Trainer

p = gluon.Parameter("p", shape=(3,), dtype="float16")
q = gluon.Parameter("q", shape=(2,), dtype="float32")
for param in (p, q):
    param.initialize(mx.init.One())
trainer = Trainer([p, q], "sgd", {"learning_rate": 0.5}, kvstore="dist_sync")
reports, scales = [], []
for step in range(5):
    with autograd.record():
        # only one worker has the overflow
        factor = np.inf if step in (2, 4) and sys.argv[1] == "0" else 0.25
        # first the gradient of each worker fits at another scale
        first = (2.0**8 if sys.argv[1] == "0" else 2.0) if step == 0 else 0.25
        loss = (p.data().astype("float32") * first).sum() + (q.data() * factor).sum()
    trainer.backward(loss)
    if step == 3:
        trainer.clip_global_norm(1e9, 1)
    report = trainer.step(1)
    reports.append([report.applied, list(report.overflow)])
    scales.append(report.next_loss_scale)
values = [param.data().asnumpy().tolist() for param in (p, q)]
with open(sys.argv[2], "w") as file:
    json.dump({"reports": reports, "values": values, "scales": scales}, file)
"""


@pytest.mark.slow
def test_two_workers_skip_together_when_one_overflows(tmp_path):
    first, second = run_two_workers(tmp_path, WORKER)
    assert first == second
    skip = [False, ["q"]]
    assert first["reports"] == [[True, []], [True, []], skip, [True, []], skip]
    # steps of lr 0.5: the first has p's gradients 256 and 2, the two others 0.25 of each worker
    assert first["values"] == [[1 - 129 - 0.5] * 3, [1 - 0.75] * 2]
    assert first["scales"] == [16.0, 16.0, 8.0, 8.0, 4.0]
