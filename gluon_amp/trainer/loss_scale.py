"""Loss scales: none, static, dynamic. Small state machines in plain Python with one interface.

A float16 gradient below 2**-24 is zero. Multiplying the loss by a scale moves the gradients up into
float16's range, and the update divides them by the scale again. Scales are powers of two, so that
both are exact: without overflow or underflow, a scaled step is bit for bit the unscaled one.

A trainer reads ``scale`` before the backward pass and calls ``update(finite)`` after it.
"""

import math
from numbers import Integral, Real
from typing import Optional

# A scale is the head gradient of a float32 loss, so it has to be a normal float32.
SMALLEST, LARGEST = 2.0**-126, 2.0**127

# The state of a DynamicLossScale.
POWERS_OF_TWO = ("scale", "growth_factor", "backoff_factor", "min_scale", "max_scale")
DYNAMIC_FIELDS = (
    *("scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale", "max_scale"),
    *("hysteresis", "finite_steps", "overflows_left"),
)


class LossScale:
    """The interface of all loss scales, and the bookkeeping of several trainers that share one.

    Attributes
    ----------
    scale : float
        The factor of the next backward pass, a power of two.
    at_floor : bool
        True if another overflow cannot lower the scale.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> [isinstance(scale, amp.LossScale) for scale in (amp.NoLossScale(), amp.StaticLossScale(8))]
    [True, True]
    """

    scale = 1.0
    at_floor = True

    # Several trainers that share this object can step on the gradients of one backward pass. Each
    # of them reports whether its own were finite, but the pass counts once.
    backwards = 0  # number of backward passes so far
    backward_scale: Optional[float] = None  # the scale of the last one
    backward_passes: tuple = ()  # for trainers: what undoes the last one
    _finite: Optional[bool] = None  # the outcome of the last one; None before the first report
    _before_update: Optional[dict] = None  # the state before that report

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

    def begin_backward(self, scale: float) -> None:
        """Record that a backward pass with this scale begins; called by trainers."""
        self.backwards += 1
        self.backward_scale = scale
        self._finite = self._before_update = None

    def update_once(self, finite: bool) -> None:
        """Call `update(finite)` once for each backward pass; called by trainers.

        The first trainer that steps makes the update. If it was finite and a later trainer reports
        an overflow, that update is undone and made again as an overflow.
        """
        if self._finite is None:
            self._before_update = self.state_dict()
            self.update(finite)
            self._finite = finite
        elif self._finite and not finite:
            self.load_state_dict(self._before_update)
            self.update(False)
            self._finite = False

    def _check_fields(self, state: dict) -> None:
        expected = set(self.state_dict())
        if not isinstance(state, dict) or set(state) != expected:
            received = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise ValueError(
                f"The state of a {type(self).__name__} has the fields {sorted(expected)}, received "
                f"{received}: load what state_dict() of the same class returned."
            )

    def __repr__(self):
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
        self.scale = _power_of_two("scale", scale)

    def state_dict(self) -> dict:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict) -> None:
        self._check_fields(state)
        self.scale = _power_of_two("scale", state["scale"])


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

    With the defaults this is torch's GradScaler with bounds. ``hysteresis`` is Apex's
    (csrc/update_scale_hysteresis.cu): the n-th overflow since the last finite step backs off, and
    so does every further overflow until a step is finite.

    Parameters
    ----------
    init_scale : float
        The first scale, inside [min_scale, max_scale].
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

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        min_scale: float = 1.0,
        max_scale: float = 2.0**24,
        hysteresis: int = 1,
    ):
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
        )

    @property
    def at_floor(self) -> bool:
        return self.scale <= self.min_scale

    def update(self, finite: bool) -> None:
        if finite:
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

    def state_dict(self) -> dict:
        return {name: getattr(self, name) for name in DYNAMIC_FIELDS}

    def load_state_dict(self, state: dict) -> None:
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
        interval = whole_number("growth_interval", fields["growth_interval"], 1)
        hysteresis = whole_number("hysteresis", fields["hysteresis"], 1)
        fields.update(
            growth_interval=interval,
            hysteresis=hysteresis,
            finite_steps=whole_number("finite_steps", fields["finite_steps"], 0, interval - 1),
            overflows_left=whole_number("overflows_left", fields["overflows_left"], 0, hysteresis),
        )
        vars(self).update(fields)


def resolve(loss_scale) -> LossScale:
    """Return the loss scale that a user's argument stands for.

    Parameters
    ----------
    loss_scale : None, number, 'dynamic' or LossScale
        None is no scale, a number is a static one, and 'dynamic' is one with the default settings.
        An object is returned itself, so that several trainers can share it.

    Raises
    ------
    ValueError, TypeError
        For anything else.
    """
    if loss_scale is None:
        return NoLossScale()
    if isinstance(loss_scale, LossScale):
        return loss_scale
    if isinstance(loss_scale, str):
        if loss_scale == "dynamic":
            return DynamicLossScale()
        raise ValueError(
            f"Unknown loss_scale {loss_scale!r}: use 'dynamic', a power of two, None, or a "
            "StaticLossScale or DynamicLossScale."
        )
    if isinstance(loss_scale, Real) and not isinstance(loss_scale, bool):
        return StaticLossScale(loss_scale)
    raise TypeError(
        "loss_scale must be 'dynamic', a power of two, None, or a LossScale object, received "
        f"{loss_scale!r}."
    )


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


def whole_number(name: str, value, low: int, high: Optional[int] = None) -> int:
    """Return an argument as an int, or raise `ValueError` if it is none inside these bounds."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and low <= value and (high is None or value <= high):
        return int(value)
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise ValueError(f"{name} must be a whole number {bounds}, received {value!r}.")
