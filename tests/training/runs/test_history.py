"""The results of epochs, and the counts of the unfinished one."""

import json
import math

import pytest

from gluon_amp.files.schema import check
from gluon_amp.training.runs.history import HISTORY, Counts, EpochResult, History, Validation

from mxnet import nd


def test_a_history_survives_json():
    history = History(
        [EpochResult(0.5, 1.25, 10, 3.0, 0.5, 1)], [None, Validation(0.25, 0.75, 1.5, 8)], 7, 1
    )
    history.averaged = [Validation(0.5, 0.75, 1.25, 8)]
    state = json.loads(json.dumps(history.state()))
    assert History.restored(state) == history
    check(state, HISTORY, "history")
    del state["averaged"]  # as in older files
    check(state, HISTORY, "history")
    assert History.restored(state).averaged == []


def test_the_best_epoch_is_the_first_of_those_with_the_highest_top_1():
    def best(*scores):
        results = [None if top1 is None else Validation(top1, 1.0, 0.5, 8) for top1 in scores]
        return History(validated=results).best_epoch

    assert (best(0.5, None, 0.75, 0.75, 0.25), best(0.75, 0.5)) == (2, 0)
    assert best(None) is None


def test_counts_go_on_where_they_were():
    outputs, labels = nd.array([[0, 1], [1, 0], [0, 1]]), nd.array([1, 1, 1])
    whole, part = Counts(), Counts()
    for counts in (whole, part):
        counts.accuracy.update(labels, outputs)
        counts.loss.update(nd.array([0.1, 0.2, 0.3]))
        counts.skipped += 1
    part = Counts.restored(json.loads(json.dumps(part.state())))
    for counts in (whole, part):
        counts.accuracy.update(labels, outputs)
        counts.loss.update(nd.array([0.7]))
    assert part.result() == whole.result()
    assert whole.result().accuracy == 4 / 6
    assert whole.result().loss == pytest.approx(1.3 / 4)
    assert math.isnan(Counts().loss.value)
