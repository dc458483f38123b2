"""Loss scales: exact traces, bounds, hysteresis, states, misuse."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_amp.trainer.loss_scale import (
    DynamicLossScale,
    LossScale,
    NoLossScale,
    StaticLossScale,
    resolve,
)

law = settings(deadline=None, derandomize=True, max_examples=40)
outcomes = st.lists(st.booleans(), max_size=80)


def used_scales(scale, finites):
    """Return the scale of each step, for steps with these outcomes."""
    used = []
    for finite in finites:
        used.append(scale.scale)
        scale.update(finite)
    return used


class ApexScaler:
    """Apex's csrc/update_scale_hysteresis.cu; with hysteresis 1 it is torch's rule."""

    def __init__(self, hysteresis, interval):
        self.scale, self.interval, self.tracker = 2.0**16, interval, 0
        self.hysteresis = self.left = hysteresis

    def update(self, finite):
        if not finite:
            self.left -= 1
            self.tracker = 0
            if self.left <= 0:
                self.scale *= 0.5
            return
        self.tracker += 1
        if self.tracker == self.interval:
            self.scale *= 2.0
            self.tracker = 0
        self.left = self.hysteresis


# ------------------------------------------------------------------------------ traces


@pytest.mark.parametrize(
    "settings, finites, trace",
    [
        # torch's documented example, with one step more
        (
            {"init_scale": 4, "backoff_factor": 0.25, "growth_interval": 2},
            [True, True, False, True],
            [4, 4, 8, 2],
        ),
        # growth by 4 ends at the ceiling, backoff by 4 at the floor
        (
            {
                "init_scale": 4,
                "growth_factor": 4,
                "backoff_factor": 0.25,
                "growth_interval": 2,
                "min_scale": 0.5,
                "max_scale": 16,
            },
            [True] * 4 + [False] * 3 + [True],
            [4, 4, 16, 16, 16, 4, 1, 0.5],
        ),
    ],
)
def test_traces(settings, finites, trace):
    assert used_scales(DynamicLossScale(**settings), finites) == trace


@law
@given(outcomes, st.integers(1, 4), st.integers(1, 5))
def test_random_overflows_equal_apex_and_with_hysteresis_1_torch(finites, hysteresis, interval):
    ours = DynamicLossScale(
        init_scale=2.0**16,
        growth_interval=interval,
        hysteresis=hysteresis,
        min_scale=2.0**-100,
        max_scale=2.0**120,
    )
    theirs = ApexScaler(hysteresis, interval)
    assert used_scales(ours, finites) == used_scales(theirs, finites)


# ------------------------------------------------------------------------------ states and bounds


def test_400_overflows_end_at_the_smallest_float16_and_400_growths_at_2_to_the_24():
    scale = DynamicLossScale()
    used_scales(scale, [False] * 400)
    # below it, the head gradient of a summed loss would be zero in float16
    assert scale.scale == float(np.finfo("float16").smallest_subnormal) == 2.0**-24
    assert np.float16(scale.scale) > 0 == np.float16(scale.scale / 2)
    assert scale.at_floor
    scale = DynamicLossScale(growth_interval=1)
    used_scales(scale, [True] * 400)
    assert (scale.scale, scale.at_floor) == (2.0**24, False)


# ------------------------------------------------------------------------------ the first scale


def test_only_without_an_init_scale_it_searches_until_the_first_finite_step():
    assert not LossScale.searching
    assert not DynamicLossScale(2.0**16).searching
    scale = DynamicLossScale()
    scale.update(False)
    assert (scale.scale, scale.searching) == (2.0**15, True)
    scale.update(True)
    assert (scale.scale, scale.searching) == (2.0**15, False)


@pytest.mark.parametrize(
    "fitting, scale", [(2.0**7, 2.0**4), (2.0**16, 2.0**13), (2.0**-22, 2.0**-24), (None, 2.0**15)]
)
def test_an_overflow_lowers_the_scale_to_3_bits_below_where_the_pass_fits(fitting, scale):
    loss_scale = DynamicLossScale()
    loss_scale.begin_pass(2.0**16)
    loss_scale.update_once(False, fitting)
    assert (loss_scale.scale, loss_scale.searching) == (scale, True)


@pytest.mark.parametrize("low, high, first", [(-24, 10, 2.0**10), (20, 24, 2.0**20)])
def test_the_first_scale_is_inside_the_bounds(low, high, first):
    scale = DynamicLossScale(min_scale=2.0**low, max_scale=2.0**high)
    assert scale.scale == first
    scale.begin_pass(first)
    scale.update_once(False, 2.0**-24)
    assert scale.scale == 2.0**low


def test_the_lowest_of_two_trainers_scales_counts():
    scale = DynamicLossScale()
    scale.begin_pass(2.0**16)
    scale.update_once(True)
    assert not scale.searching
    scale.update_once(False, 2.0**9)
    assert (scale.scale, scale.searching) == (2.0**6, True)
    scale.update_once(False, 2.0**5)
    scale.update_once(False, 2.0**9)
    assert (scale.scale, scale.searching) == (2.0**2, True)


def test_a_state_from_before_the_search_was_added_does_not_search():
    state = DynamicLossScale(64).state_dict()
    del state["searching"]
    scale = DynamicLossScale()
    scale.load_state_dict(state)
    assert (scale.scale, scale.searching) == (64.0, False)


# ------------------------------------------------------------------------------ what users write


def test_resolve():
    assert isinstance(resolve(None), NoLossScale)
    assert isinstance(resolve("dynamic"), DynamicLossScale)
    assert (resolve(128).scale, resolve(0.5).scale) == (128.0, 0.5)
    shared = DynamicLossScale()
    assert resolve(shared) is shared
    for wrong in (True, DynamicLossScale):
        with pytest.raises(TypeError, match="loss_scale must be 'dynamic', a power of two"):
            resolve(wrong)
    with pytest.raises(ValueError, match="loss_scale must be 'dynamic', .* received 'dynamc'"):
        resolve("dynamc")


@pytest.mark.parametrize("wrong", [0, -2, 3, math.inf, "8", True, 2.0**200])
def test_scales_must_be_powers_of_two(wrong):
    with pytest.raises(ValueError, match="scale must be a power of two"):
        StaticLossScale(wrong)
    with pytest.raises(ValueError, match="scale must be a power of two"):
        DynamicLossScale(init_scale=wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"init_scale": 1000}, r"received 1000, the nearest is 1024\.0\."),
        ({"growth_factor": 1.5}, "growth_factor must be a power of two"),
        ({"growth_factor": 1}, "growth_factor must be above 1"),
        ({"backoff_factor": 2}, "backoff_factor below 1"),
        ({"max_scale": math.inf}, "max_scale must be a power of two"),
        ({"init_scale": 2.0**-25}, r"The scale 2.98023e-08 is outside \[min_scale, max_scale\] = "),
        ({"min_scale": 4, "max_scale": 2}, "outside"),
        ({"growth_interval": 0}, "growth_interval must be a whole number of at least 1"),
        ({"growth_interval": 2.5}, "growth_interval must be a whole number"),
        ({"hysteresis": 0}, "hysteresis must be a whole number of at least 1"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        DynamicLossScale(**wrong)


def test_a_state_with_a_missing_or_unknown_field_is_refused_and_changes_nothing():
    scale = DynamicLossScale(init_scale=64)
    before = scale.state_dict()
    missing = {k: v for k, v in before.items() if k != "min_scale"}
    for wrong in (missing, {**before, "loss_id": 0}, {}, None, StaticLossScale(2).state_dict()):
        with pytest.raises(ValueError, match="The state of a DynamicLossScale has the fields"):
            scale.load_state_dict(wrong)
    wrong = {"scale": 3, "finite_steps": 2000, "overflows_left": 2, "searching": 1}
    for field, value in wrong.items():
        with pytest.raises(ValueError, match=field):
            scale.load_state_dict({**before, field: value})
    assert scale.state_dict() == before


def test_states_of_scales_that_do_not_move():
    scale = StaticLossScale(128)
    scale.load_state_dict({"scale": 64})
    scale.update(False)
    assert scale.scale == 64.0
    for one, wrong in ((scale, {}), (NoLossScale(), {"scale": 1.0})):
        with pytest.raises(ValueError, match=type(one).__name__):
            one.load_state_dict(wrong)


class Halving(LossScale):
    scale = 8.0

    def update(self, finite):
        self.scale /= 2


class AsProperty(LossScale):
    steps = 0

    @property
    def scale(self):
        return 3.0 if self.steps else 4.0


def test_a_scale_that_is_set_to_no_power_of_two():
    for value, scale in ((100, StaticLossScale(8)), (None, DynamicLossScale(8)), (0, LossScale())):
        before = scale.scale
        with pytest.raises(ValueError, match=r"^scale must be a power of two"):
            scale.scale = value
        assert scale.scale == before


def test_a_class_of_a_user_needs_only_a_scale_that_is_a_power_of_two():
    scale = resolve(Halving())
    scale.update_once(True)
    assert scale.checked_scale() == 4.0
    scale = resolve(AsProperty())
    scale.steps = 1
    for check in (scale.checked_scale, lambda: resolve(scale)):
        with pytest.raises(ValueError, match=r"scale must be a power of two.* received 3\.0"):
            check()
