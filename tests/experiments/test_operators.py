"""The words of the operator table against what MXNet's operators do."""

import pytest

from experiments.operators import calls, measure
from gluon_amp.policy import op_table

# Not called here: they end the process, or leave oneDNN unable to run another primitive
CRASH = ("Deconvolution", "_contrib_quantize_asym", "reset_arrays")
OPERATORS = [op for op in calls.NETWORK if op not in CRASH]


# Marked, but not differing: code of users, which may
USERS = ("Custom", "_CustomFunction")


def equal(op):
    """Return whether the second backward pass has the same gradients, for each way to run it."""
    found = measure.rows(op, *calls.call(op), "float32")
    return [row["equal"] for row in found if "equal" in row]


def test_operators_that_are_marked_differ():
    marked = [op for op in OPERATORS if op in op_table.RUNS_ONCE and op not in USERS]
    found = {op: equal(op) for op in marked}
    assert {op for op, each in found.items() if each and not any(each)} == set(
        """
        Dropout IdentityAttachKLSparseReg SpatialTransformer _linalg_det _linalg_slogdet
        _foreach _while_loop _cond
        """.split()
    )
    assert not any(any(each) for each in found.values())


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2, 3))]
)
def test_all_others_have_the_same_gradients(first):
    """Each is called once in each way; `make operators` tries more attributes and dtypes."""
    others = [op for op in OPERATORS if op not in op_table.RUNS_ONCE][first::4]
    found = {op: equal(op) for op in others}
    assert [op for op, each in found.items() if not all(each)] == []
    assert sum(map(len, found.values())) > 500
