"""What a schema allows, and the sentence for what it does not."""

import numpy as np
import pytest

from gluon_amp.files.schema import (
    ARRAY,
    COUNT,
    NAME,
    NONE,
    NUMBER,
    Either,
    Mapping,
    Optional,
    check,
)

SCHEMA = {
    "count": COUNT,
    "rate": Optional(Either("a number or None", (NUMBER, NONE))),
    "pairs": [(NAME, COUNT)],
    "arrays": Mapping(NAME, ARRAY),
}
GOOD = {"count": 1, "rate": None, "pairs": [("a", 0), ["b", 2]], "arrays": {"w": np.zeros(2)}}


@pytest.mark.parametrize("change, message", [
    ({}, None),
    ({"rate": 0.5, "pairs": ()}, None),
    ({"count": True}, "state['count'] is True and not a whole number of at least 0"),
    ({"count": 2**63}, "state['count'] is 9223372036854775808 and not a whole number"),
    ({"rate": float("inf")}, "state['rate'] is inf and not a number or None"),
    ({"pairs": {}}, "state['pairs'] is a dict and not a list"),
    ({"pairs": [("a",)]}, "state['pairs'][0] has 1 items and not 2"),
    ({"pairs": [("a\n", 1)]}, "state['pairs'][0][0] is unprintable text and not a name"),
    ({"arrays": [1]}, "state['arrays'] is a list and not a dict"),
    ({"arrays": {1: np.zeros(2)}}, "a key of state['arrays'] is 1 and not a name"),
    ({"arrays": {"w": np.zeros(2, int)}}, "state['arrays']['w'] is a ndarray and not an array"),
    ({"more": 1}, "state has the unknown field 'more'"),
])  # fmt: skip
def test_the_first_wrong_part_is_named(change, message):
    if message is None:
        check({**GOOD, **change}, SCHEMA, "state")
        return
    with pytest.raises(ValueError) as error:
        check({**GOOD, **change}, SCHEMA, "state")
    assert str(error.value).startswith(message)


def test_fields_may_only_lack_where_they_are_optional():
    check({name: value for name, value in GOOD.items() if name != "rate"}, SCHEMA, "state")
    for value, message in [({"rate": 1}, "state has no count"), (3, "state is 3 and not a dict")]:
        with pytest.raises(ValueError, match=message):
            check(value, SCHEMA, "state")
