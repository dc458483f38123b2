"""Loss scales: none, static, dynamic. Small state machines in plain Python with one interface.

A float16 gradient below 2**-24 is zero. Multiplying the loss by a scale moves the gradients up into
float16's range, and the update divides them by the scale again. Scales are powers of two, so that
both are exact: without overflow or underflow, a scaled step is bit for bit the unscaled one.

A trainer reads ``scale`` before the backward pass and calls ``update(finite)`` after it.
"""

import math
import threading
from numbers import Integral, Real
from typing import Any, Optional, Tuple, Union

from gluon_amp.base.messages import scale_text

# A scale is the head gradient of a float32 loss, so it has to be a normal float32.
SMALLEST, LARGEST = 2.0**-126, 2.0**127

FIRST_SCALE = 2.0**16  # torch's and contrib.amp's
FLOOR = 2.0**-24  # the smallest float16

# Bits between the largest gradient of one pass and 65504. Gradients of other batches are larger,
# and grow in the first steps: in 60 steps of 9 small networks by 3 bits at most.
MARGIN_BITS = 3

# If a pass cannot be replayed, it is assumed to fit at this share of its scale. With the margin, a
# scale of 65536 becomes 256, near the 128 of MXNet's published recipes.
GUESS = 2.0**-5

# States of steps are replaced, and scales updated, under one lock: GluonCV runs backward passes in
# threads, and trainers in several threads may share a scale.
LOCK = threading.RLock()

# The state of a DynamicLossScale.
POWERS_OF_TWO = ("scale", "growth_factor", "backoff_factor", "min_scale", "max_scale")
DYNAMIC_FIELDS = (
    *("scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale", "max_scale"),
    *("hysteresis", "finite_steps", "overflows_left", "searching"),
)


class _ByDtype:
    def __repr__(self):
        return "by dtype"


BY_DTYPE = _ByDtype()  # what `Trainer` accepts for a scale that goes by the parameters' dtypes


class LossScale:
    """The interface of all loss scales, and the bookkeeping of several trainers that share one.

    Attributes
    ----------
    scale : float
        The factor of the next backward pass, a power of two; setting another number raises
        `ValueError`.
    at_floor : bool
        True if another overflow cannot lower the scale.
    searching : bool
        True if trainers should look for the scale at which an overflowing pass fits, and pass it to
        `update_once`.
    limit : str
        Why the scale cannot go lower, for an error message.
    min_scale : float
        Where the search ends.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> [isinstance(scale, amp.LossScale) for scale in (amp.NoLossScale(), amp.StaticLossScale(8))]
    [True, True]
    """

    scale = 1.0
    at_floor = True
    searching = False
    limit = "which cannot go lower"
    min_scale = SMALLEST

    # The last `Pass` with this scale, which only trainers read and set. Several trainers that share
    # this object can step on it. Each of them reports whether its own gradients were finite, but
    # the pass counts once.
    last_pass: Any = None
    # Whether its gradients were finite, and the state before that was reported
    _outcome: Optional[Tuple[bool, dict]] = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _power_of_two(name, value) if name == "scale" else value)

    def checked_scale(self) -> float:
        """Return the scale; raise `ValueError` unless it is a power of two.

        Trainers read the scale here, as the class of a user can have any attribute or property.
        """
        return _power_of_two("scale", self.scale)

    def update(self, finite: bool) -> None:
        """Change the scale after a step whose gradients were all finite, or not."""

    def state_dict(self) -> dict:
        """Return the whole state, as plain numbers, for `load_state_dict`."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        """Restore what `state_dict` returned.

        Raises
        ------
        ValueError
            When a field is missing, unknown or out of range; the object is then unchanged.
        """
        self._check_fields(state)

    @property
    def pass_is_pending(self) -> bool:
        """Whether no trainer has stepped on the last pass yet."""
        return self.last_pass is not None and self._outcome is None

    def begin_pass(self, began: Any) -> None:
        """Set the last pass to one that begins now; called by trainers."""
        self.last_pass, self._outcome = began, None

    def update_once(self, finite: bool, fitting: Optional[float] = None) -> None:
        """Call `update(finite)` once for each pass; called by trainers.

        The first trainer that steps makes the update. If it was finite and a later trainer reports
        an overflow, that update is undone and made again as an overflow.

        `fitting` is the largest scale at which an overflowing pass fits, if the scale was searching
        and there is one.
        """
        with LOCK:
            if self._outcome is None:
                self._outcome = finite, self.state_dict()
                self.update(finite)
            elif self._outcome[0] and not finite:
                _, before = self._outcome
                self.load_state_dict(before)
                self.update(False)
                self._outcome = False, before
            if fitting is not None:
                self.lower_to(fitting)

    def lower_to(self, fitting: float) -> None:
        """Lower the scale to where a pass with this largest fitting scale has a margin."""

    def _check_fields(self, state: dict) -> None:
        expected = set(self.state_dict())
        if not isinstance(state, dict) or set(state) != expected:
            received = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise ValueError(
                f"The state of a {type(self).__name__} has the fields {sorted(expected)}, received "
                f"{received}: load what state_dict() of the same class returned."
            )

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.state_dict().items())
        return f"{type(self).__name__}({fields})"


class NoLossScale(LossScale):
    """Scale 1 without an overflow check, for float32 and bfloat16.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> amp.NoLossScale().scale
    1.0
    """


class FiniteCheck(LossScale):
    """Scale 1 with an overflow check: steps whose gradients are not all finite are skipped."""

    limit = "without a loss scale to lower"


class StaticLossScale(LossScale):
    """A scale that never changes; steps with non-finite gradients are still skipped.

    Parameters
    ----------
    scale : float
        A power of two, such as the 128 of MXNet's published SSD, R-CNN and seq2seq recipes
        (docs/faq/float16, "Loss scaling").

    Raises
    ------
    ValueError
        When the scale is not a power of two.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> scale = amp.StaticLossScale(128)
    >>> scale.update(finite=False)
    >>> scale
    StaticLossScale(scale=128.0)
    """

    def __init__(self, scale: float):
        self.scale = scale

    def state_dict(self) -> dict:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict) -> None:
        self._check_fields(state)
        self.scale = state["scale"]


class DynamicLossScale(LossScale):
    """A scale that grows until gradients overflow, and then backs off.

        update(finite):
            if finite:
                overflows_left = hysteresis
                finite_steps += 1
                if finite_steps == growth_interval:
                    scale = min(scale * growth_factor, max_scale);  finite_steps = 0
            else:
                overflows_left -= 1
                finite_steps = 0
                if overflows_left <= 0:
                    scale = max(scale * backoff_factor, min_scale)

    With an ``init_scale`` this is torch's GradScaler with bounds. ``hysteresis`` is Apex's
    (csrc/update_scale_hysteresis.cu): the n-th overflow since the last finite step backs off, and
    so does every further overflow until a step is finite.

    Without an ``init_scale`` the first one is 65536, and is searched for as long as no step was
    finite. The trainer replays an overflowing backward pass at lower scales, by bisection, and
    finds the largest one at which its gradients fit. It lowers the scale to 3 bits below that, at
    once: these are for other batches, and for gradients that grow in the first steps or are added
    up. Then it repeats the pass at this scale, so that the step is not lost. If a pass cannot be
    repeated, the step is skipped, and if it cannot be replayed either (`amp.scale_loss`, control
    flow, one pass for each device), the scale is divided by 256. If it fits nowhere, as with NaN in
    the data, it backs off.

    The default floor is 2**-24, the smallest float16. There a head gradient of 1, which is that of
    a summed loss, is still a float16, and gradients of up to 65504 * 2**24 = 1.1e12 fit. Below it
    head gradients would be 0. A floor of 1 allows 65504 only, and the gradient of a loss that is
    summed over thousands of positions can be larger (GluonCV's YOLOv3).

    Parameters
    ----------
    init_scale : float, optional
        The first scale, inside [min_scale, max_scale]; by default it is searched for.
    growth_factor, backoff_factor : float
        Above 1 and below 1.
    growth_interval : int
        The number of finite steps since the last overflow or growth after which the scale grows.
    min_scale, max_scale : float
        The scale stays inside these bounds; min_scale may be below 1.
    hysteresis : int
        The number of overflows, without a finite step between them, after which the scale backs
        off.

    Raises
    ------
    ValueError
        When a scale or a factor is not a power of two, or a value is out of range.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> scale = amp.DynamicLossScale(init_scale=1024, growth_interval=2)
    >>> for finite in (True, True, False):
    ...     scale.update(finite)
    ...     print(scale.scale)
    1024.0
    2048.0
    1024.0
    """

    growth_factor: float
    backoff_factor: float
    growth_interval: int
    min_scale: float
    max_scale: float
    hysteresis: int
    finite_steps: int
    overflows_left: int

    def __init__(
        self,
        init_scale: Optional[float] = None,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        min_scale: float = FLOOR,
        max_scale: float = 2.0**24,
        hysteresis: int = 1,
    ):
        searching = init_scale is None
        if searching:
            init_scale = max(min(FIRST_SCALE, max_scale), min_scale)
        self._set(
            scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            min_scale=min_scale,
            max_scale=max_scale,
            hysteresis=hysteresis,
            finite_steps=0,
            overflows_left=hysteresis,
            searching=searching,
        )

    @property
    def at_floor(self) -> bool:  # type: ignore[override]  # a constant of the others
        return self.scale <= self.min_scale

    @property
    def limit(self) -> str:  # type: ignore[override]  # a constant of the others
        floor = scale_text(self.min_scale).replace("^", "**")
        return f"which cannot go lower than min_scale={floor} (a lower one can be given)"

    def update(self, finite: bool) -> None:
        if finite:
            self.searching = False
            self.overflows_left = self.hysteresis
            self.finite_steps += 1
            if self.finite_steps == self.growth_interval:
                self.scale = min(self.scale * self.growth_factor, self.max_scale)
                self.finite_steps = 0
        else:
            # The count stops at 0, so that a long run of overflows does not decrease it forever.
            self.overflows_left = max(self.overflows_left - 1, 0)
            self.finite_steps = 0
            if self.overflows_left == 0:
                self.scale = max(self.scale * self.backoff_factor, self.min_scale)

    def lower_to(self, fitting: float) -> None:
        self.scale = max(min(fitting * 2.0**-MARGIN_BITS, self.scale), self.min_scale)

    def state_dict(self) -> dict:
        return {name: getattr(self, name) for name in DYNAMIC_FIELDS}

    def load_state_dict(self, state: dict) -> None:
        if isinstance(state, dict):
            state = {"searching": False, **state}  # older states do not have it
        self._check_fields(state)
        self._set(**state)

    def _set(self, **fields):
        """Check all values, and only then assign them: a wrong state changes nothing."""
        for name in POWERS_OF_TWO:
            fields[name] = _power_of_two(name, fields[name])
        scale, low, high = fields["scale"], fields["min_scale"], fields["max_scale"]
        growth_factor, backoff_factor = fields["growth_factor"], fields["backoff_factor"]
        if growth_factor <= 1 or backoff_factor >= 1:
            raise ValueError(
                "growth_factor must be above 1 and backoff_factor below 1, received "
                f"{growth_factor:g} and {backoff_factor:g}."
            )
        if not low <= scale <= high:
            raise ValueError(
                f"The scale {scale:g} is outside [min_scale, max_scale] = "
                f"[{low:g}, {high:g}]: change it or the bounds."
            )
        if not isinstance(fields["searching"], bool):
            raise ValueError(f"searching must be True or False, received {fields['searching']!r}.")
        interval = whole_number("growth_interval", fields["growth_interval"], 1)
        hysteresis = whole_number("hysteresis", fields["hysteresis"], 1)
        fields.update(
            growth_interval=interval,
            hysteresis=hysteresis,
            finite_steps=whole_number("finite_steps", fields["finite_steps"], 0, interval - 1),
            overflows_left=whole_number("overflows_left", fields["overflows_left"], 0, hysteresis),
        )
        vars(self).update(fields)


# What `Trainer` accepts: see there.
LossScaleOption = Union[float, str, LossScale, _ByDtype, None]


def resolve(loss_scale: LossScaleOption, check_finite: Optional[bool] = None) -> LossScale:
    """Return the loss scale that a user's arguments stand for: see `Trainer`.

    An object is returned itself, so that several trainers can share it.
    """
    if check_finite not in (None, False, True):
        raise TypeError(f"check_finite must be True, False or None, received {check_finite!r}.")
    scale: LossScale
    if loss_scale is None:
        scale = NoLossScale()
    elif isinstance(loss_scale, LossScale):
        scale = loss_scale
        scale.checked_scale()
    elif isinstance(loss_scale, str) and loss_scale == "dynamic":
        scale = DynamicLossScale()
    elif isinstance(loss_scale, Real) and not isinstance(loss_scale, bool):
        scale = StaticLossScale(loss_scale)
    else:
        raise (ValueError if isinstance(loss_scale, str) else TypeError)(
            "loss_scale must be 'dynamic', a power of two, None, or a LossScale object, received "
            f"{loss_scale!r}."
        )
    if isinstance(scale, NoLossScale):
        return FiniteCheck() if check_finite else scale
    if check_finite not in (None, True):
        raise ValueError(
            "check_finite=False cannot be used with a loss scale, which needs the check: leave it "
            "out, or pass loss_scale=None."
        )
    return scale


def _power_of_two(name: str, value) -> float:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if number and SMALLEST <= value <= LARGEST and math.frexp(value)[0] == 0.5:
        return float(value)
    raise ValueError(
        f"{name} must be a power of two, as only these are exact: received {value!r}"
        + (f", the nearest is {_nearest(value)!r}." if number and 0 < value < math.inf else ".")
    )


def _nearest(value: float) -> float:
    return min(max(2.0 ** round(math.log2(value)), SMALLEST), LARGEST)


def whole_number(name: str, value: Any, low: int, high: Optional[int] = None) -> int:
    """Return an argument as an int, or raise `ValueError` if it is none inside these bounds."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and low <= value and (high is None or value <= high):
        return int(value)
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise ValueError(f"{name} must be a whole number {bounds}, received {value!r}.")
