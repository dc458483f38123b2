"""Law 6: the scale never leaves its bounds; at the floor, an error names the cause."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gluon_amp as amp
from tests.trainer.helpers import parameter, run

law = settings(deadline=None, derandomize=True, max_examples=12)


@law
@given(st.lists(st.booleans(), max_size=30), st.integers(-3, 0), st.integers(0, 3))
def test_the_scale_in_the_gradients(finites, low, high):
    p = parameter("p", [0.0])
    loss_scale = amp.DynamicLossScale(
        init_scale=1, growth_interval=1, min_scale=2.0**low, max_scale=2.0**high
    )
    options = {"loss_scale": loss_scale, "max_consecutive_skips": 100}
    trainer = amp.Trainer([p], "sgd", {"learning_rate": 0.0}, **options)
    for finite in finites:
        run(trainer, [(p, [1.0 if finite else 1e30])], step=False)
        if finite:
            assert 2.0**low <= p.grad().asnumpy().item() <= 2.0**high
        trainer.step(1)


def test_the_floor_is_reached_and_named():
    p = parameter("p", [0.0])
    scale = amp.DynamicLossScale(init_scale=4, min_scale=1)
    trainer = amp.Trainer([p], "sgd", loss_scale=scale, max_consecutive_skips=3)
    run(trainer, [(p, [1.0])])
    with pytest.raises(FloatingPointError, match="3 steps in a row .* gradients of p"):
        for _ in range(9):
            run(trainer, [(p, [1e30])])
    assert scale.scale == 1
