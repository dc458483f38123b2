"""Packages of the extras: what a user reads where one is missing."""

import importlib
import sys

import pytest

from gluon_amp.base.messages import UsageError, from_extra
from gluon_amp.training.runs import log
from gluon_amp.training.tables.figure import styled
from gluon_amp.training.tables.statistics import statsmodels


def test_a_missing_package_is_one_sentence_with_the_extra():
    with pytest.raises(UsageError) as caught, from_extra("results", "--plot needs no_such_one"):
        importlib.import_module("no_such_one")
    assert str(caught.value) == (
        "--plot needs no_such_one: run `pip install 'gluon-amp[results]'`."
    )
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("matplotlib.style", "results", styled().__enter__),
        ("statsmodels.stats", "results", statsmodels),
        ("tqdm", "data", log.tqdm),
    ],
)
def test_the_users_of_an_extra_name_it(package, extra, use, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    name = package.partition(".")[0]
    with pytest.raises(UsageError) as caught:
        use()
    assert str(caught.value) == f"{name} is not installed: run `pip install 'gluon-amp[{extra}]'`."
