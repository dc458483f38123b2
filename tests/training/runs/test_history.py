"""The results of epochs."""

import json

from gluon_amp.files.schema import check
from gluon_amp.training.runs.history import HISTORY, EpochResult, History, Validation


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
