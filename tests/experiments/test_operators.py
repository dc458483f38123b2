"""The words of the operator table against what MXNet's operators do."""

import pytest

from experiments.operators import __main__ as command
from experiments.operators import calls, faults, measure
from gluon_amp.graph import op_table

# Not called here: they end the process, or leave oneDNN unable to run another primitive
CRASH = ("Deconvolution", "_contrib_quantize_asym", "reset_arrays")
OPERATORS = [op for op in calls.NETWORK if op not in CRASH]
# Marked, but not differing: code of users, which may
USERS = ("Custom", "_CustomFunction")
MARKED = [op for op in OPERATORS if op_table.has("once", op) and op not in USERS]
PARTS = [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2, 3))]


def measured(operators):
    """Return what was measured of operators, each in several ways."""
    return {op: list(measure.rows(op, *calls.call(op), "float32")) for op in operators}


def test_operators_that_are_marked_differ():
    found = {
        op: [row["equal"] for row in rows if "equal" in row]
        for op, rows in measured(MARKED).items()
    }
    assert {op for op, each in found.items() if each} == set(
        """
        Dropout IdentityAttachKLSparseReg SpatialTransformer _linalg_det _linalg_slogdet
        _foreach _while_loop _cond
        """.split()
    )
    assert not any(any(each) for each in found.values())


@pytest.mark.parametrize("first", PARTS)
def test_all_others_have_the_same_gradients_and_draw_if_they_are_marked(first):
    """Each is called once in each way; `make operators` tries more attributes and dtypes."""
    found = measured([op for op in OPERATORS if not op_table.has("once", op)][first::4])
    pairs = [(op, row) for op, rows in found.items() for row in rows]
    assert [op for op, row in pairs if not row.get("equal", True)] == []
    assert sum("equal" in row for _, row in pairs) > 500
    draw = {op for op, row in pairs if any(row.get("random", ()))}
    called = {op for op, row in pairs if "random" in row}
    assert draw == op_table.named("random") & called and len(draw) > 5


def test_the_program_says_where_the_table_and_the_measurement_differ():
    same = {"random": [False, False], "writes": []}
    rows = [
        (("Dropout", [], {}, "float32"), {"equal": True, "random": [False, True], "writes": []}),
        (("RNN", [], {"mode": "gru"}, "float32"), {"equal": False, **same}),
        (("BatchNorm", [], {}, "float32"), {**same, "writes": [[3, "training"]]}),
        (("relu", [], {}, "float32"), {"crash": True}),
    ]
    assert list(command.disagreements(rows)) == [
        "RNN with {'mode': 'gru'} is not `once` in the table, but was seen to be.",
        "Dropout is `once` in the table, and was not seen to be in any call.",
    ]


def test_each_row_of_the_page_of_faults_has_a_program():
    assert faults.listed() == [operator for operator, _ in faults.FAULTS]


@pytest.mark.parametrize("number", range(len(faults.FAULTS)))
@pytest.mark.slow
def test_a_program_shows_each_fault(number):
    """An MXNet without it, as another version, needs no detour and no row in the page."""
    assert faults.seen(number)
