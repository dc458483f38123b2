"""Sums in 16 bits: literal numbers, and the laws that the overflow check needs."""

import itertools

import numpy as np
import pytest

from experiments.wire.sums import (
    ORDERS,
    divisor,
    errors,
    exchanged,
    overflows_seen,
    ring,
    rounded,
    sequential,
    tree,
    wide,
)
from gluon_amp.optimizer.arrays import all_finite

from mxnet import nd

WAYS = [
    (dtype, order, predivided)
    for dtype, order, predivided in itertools.product(
        ("float16", "bfloat16", "float32"), ORDERS, (False, True)
    )
]


def vectors(*rows):
    return [np.array(row, np.float32) for row in rows]


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (2049, "float16", 2048),  # ties to even
        (2051, "float16", 2052),
        (65520, "float16", np.inf),
        (2.0**-25, "float16", 0),
        (257, "bfloat16", 256),
        (259, "bfloat16", 260),
        (-257.5, "bfloat16", -258),
        (3.4e38, "bfloat16", np.inf),
        (-np.inf, "bfloat16", -np.inf),
        (1 + 2**-20, "float32", 1 + 2**-20),
    ],
)
def test_rounding(value, dtype, expected):
    assert rounded(np.array([value], np.float32), dtype)[0] == expected


def test_rounding_keeps_nan_whatever_its_bits():
    bits = np.array([0x7FC00000, 0x7F800001, 0xFFFFFFFF], np.uint32)
    for dtype in ("float16", "bfloat16", "float32"):
        assert np.isnan(rounded(bits.view(np.float32), dtype)).all()


def test_the_orders_differ_as_their_roundings_do():
    # 2048 + 1 is 2048 in float16. In a ring of three, element k starts at worker k.
    parts = vectors([2048, 2048, 2048], [1, 1, 1], [1, 1, 1])
    assert sequential(parts, "float16").tolist() == [2048, 2048, 2048]
    assert ring(parts, "float16").tolist() == [2048, 2050, 2048]
    assert wide(parts, "float16").tolist() == [2050, 2050, 2050]
    assert tree(vectors([2048], [1], [1], [1]), "float16").tolist() == [2050]
    assert sequential(vectors([1], [1], [1], [2048]), "float16").tolist() == [2052]


@pytest.mark.parametrize("order", ORDERS)
def test_exact_sums_are_exact_in_every_order(order):
    parts = vectors(*np.random.RandomState(0).randint(-16, 16, (7, 20)))
    for dtype in ("float16", "bfloat16", "float32"):
        assert exchanged(parts, dtype, order, True).tolist() == sum(parts).tolist()


def test_the_divisor_is_the_trainers():
    assert [divisor(n) for n in (1, 2, 3, 4, 5, 8, 64)] == [1, 2, 4, 4, 8, 8, 64]


@pytest.mark.parametrize("order", ORDERS)
def test_predivided_sums_of_float16_do_not_overflow(order):
    parts = vectors([40000, -65504], [40000, -65504], [40000, -65504])
    plain = exchanged(parts, "float16", order, False)
    assert plain.tolist() == [np.inf, -np.inf]
    # 3 · 65504 / 4 is 49128, which is 49120 in float16
    assert exchanged(parts, "float16", order, True).tolist() == [120000, -196480]


def test_predivision_loses_what_is_below_the_smallest_subnormal():
    smallest = 2.0**-24
    parts = vectors([smallest, 1], [0, 1])
    assert exchanged(parts, "float16", "tree", False).tolist() == [smallest, 2]
    assert exchanged(parts, "float16", "tree", True).tolist() == [0, 2]
    assert errors(exchanged(parts, "float16", "tree", True), parts).lost == 0.5


@pytest.mark.parametrize(("dtype", "order", "predivided"), WAYS)
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_an_overflow_of_any_worker_is_seen_after_the_sum(dtype, order, predivided, workers):
    # Large finite values of either sign beside it cannot hide it.
    parts = vectors(*([60000.0, -60000.0] * 3 for _ in range(workers)))
    for worker, value, element in itertools.product(
        range(workers), (np.inf, -np.inf, np.nan), range(6)
    ):
        changed = [part.copy() for part in parts]
        changed[worker][element] = value
        total = exchanged(changed, dtype, order, predivided)
        assert not np.isfinite(total[element])
        assert not all_finite([nd.array(total).astype("float32")])


@pytest.mark.parametrize("order", ORDERS)
def test_opposite_infinities_do_not_cancel(order):
    total = exchanged(vectors([np.inf, 1], [-np.inf, 1]), "float16", order, True)
    assert np.isnan(total[0]) and total[1] == 2


@pytest.mark.parametrize("order", ["one after another", "ring"])
def test_an_overflow_of_a_partial_sum_alone_stays(order):
    # The whole sum would fit; the partial one does not, and nothing makes it finite again.
    parts = vectors([60000] * 3, [60000] * 3, [-60000] * 3)
    total = exchanged(parts, "float16", order, False)
    assert total[0] == np.inf
    assert exchanged(parts, "float16", "server, float32 sums", False).tolist() == [60000] * 3


def test_overflows_seen_notices_a_sum_that_hides_one(monkeypatch):
    parts = vectors([1, 2], [3, 4])
    assert overflows_seen(parts, "float16", "tree", False)
    monkeypatch.setitem(ORDERS, "tree", lambda parts, dtype: np.nan_to_num(tree(parts, dtype)))
    assert not overflows_seen(parts, "float16", "tree", False)


def test_errors_with_literal_numbers():
    found = errors(np.array([3, 0, 8], np.float32), vectors([1, 1, 4], [3, 0, 4]))
    assert found.norm == pytest.approx(np.sqrt(2 / 81))
    assert found.largest == pytest.approx(1 / 8)
    assert found.median == pytest.approx(1 / 4)
    assert found.lost == pytest.approx(1 / 3)
    assert found.overflowed == 0
    assert errors(np.array([np.inf, 1, np.nan]), vectors([1, 1, 1])).overflowed == 2
