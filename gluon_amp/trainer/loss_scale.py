"""Loss scales: none, static, dynamic. Small state machines in plain Python, one interface.

A float16 gradient below 2**-24 is zero. Multiplying the loss by a scale moves the gradients up into
float16's range, and the update divides the scale out again. Scales are powers of two, so that both
are exact: a scaled step without over- or underflow is bit for bit the unscaled one.

A trainer asks for ``scale`` before the backward pass and reports ``update(finite)`` after it.
"""

import math
from numbers import Integral, Real
from typing import Optional

# A scale is the head gradient of a float32 loss, so it has to be a normal float32.
SMALLEST, LARGEST = 2.0**-126, 2.0**127


class LossScale:
    """What every loss scale can do; also how several trainers may share one.

    Attributes
    ----------
    scale : float
        Factor for the next backward pass, a power of two.
    at_floor : bool
        True when another overflow cannot lower the scale.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> [isinstance(scale, amp.LossScale) for scale in (amp.NoLossScale(), amp.StaticLossScale(8))]
    [True, True]
    """

    scale = 1.0
    at_floor = True

    # One backward pass can feed several trainers that share this object. Each reports what it
    # saw, but the pass counts once: `backwards` numbers the passes, `_verdict` is the outcome of
    # the last one. `backward_passes` is what undoes it, known to trainers only.
    backwards = 0
    backward_scale: Optional[float] = None
    backward_passes: tuple = ()
    _verdict: Optional[bool] = None
    _before_verdict: Optional[dict] = None

    def update(self, finite: bool) -> None:
        """Move to the next scale, given whether all gradients of this step were finite."""

    def state_dict(self) -> dict:
        """All there is to know, as plain numbers; `load_state_dict` takes it back."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        """Take over what `state_dict` returned.

        Raises
        ------
        ValueError
            When a field is missing, unknown or out of range; the object is then unchanged.
        """
        self._check_fields(state)

    def begin_backward(self, scale: float) -> None:
        """Note that a backward pass with this scale has begun; called by trainers."""
        self.backwards += 1
        self.backward_scale = scale
        self._verdict = self._before_verdict = None

    def settle(self, finite: bool) -> None:
        """`update(finite)`, but at most one growth count and one backoff per backward pass.

        The first trainer to step decides; a later one that saw an overflow where the first saw none
        turns the growth count into a backoff.
        """
        if self._verdict is None:
            self._before_verdict = self.state_dict()
            self.update(finite)
            self._verdict = finite
        elif self._verdict and not finite:
            self.load_state_dict(self._before_verdict)
            self.update(False)
            self._verdict = False

    def _check_fields(self, state: dict) -> None:
        expected = set(self.state_dict())
        found = set(state) if isinstance(state, dict) else None
        if found != expected:
            raise ValueError(
                f"The state of a {type(self).__name__} has the fields {sorted(expected)}, received "
                f"{sorted(map(str, found)) if found is not None else type(state).__name__}: load "
                "what state_dict() of the same class returned."
            )

    def __repr__(self):
        fields = ", ".join(f"{name}={value!r}" for name, value in self.state_dict().items())
        return f"{type(self).__name__}({fields})"


class NoLossScale(LossScale):
    """Scale 1 and no overflow check at all: what float32 and bfloat16 need.

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
        A power of two, e.g. 128 for MXNet's published SSD, R-CNN and seq2seq recipes
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
    """The largest scale that does not overflow, found by trying.

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

    With the defaults this is torch's GradScaler with bounds; ``hysteresis`` is Apex's
    (csrc/update_scale_hysteresis.cu): the n-th overflow since the last finite step backs off, and
    so does every further one until a step is finite.

    Parameters
    ----------
    init_scale : float
        First scale, inside [min_scale, max_scale].
    growth_factor, backoff_factor : float
        Above 1 and below 1.
    growth_interval : int
        Finite steps in a row, counted from the last overflow or growth, before the scale grows.
    min_scale, max_scale : float
        The scale never leaves these bounds; min_scale may be below 1.
    hysteresis : int
        Overflows without a finite step between them that it takes to back off.

    Raises
    ------
    ValueError
        When a scale or factor is not a power of two, or a value is out of range.

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
            # Clamped at 0: a long run of overflows must not grow the number without end.
            self.overflows_left = max(self.overflows_left - 1, 0)
            self.finite_steps = 0
            if self.overflows_left == 0:
                self.scale = max(self.scale * self.backoff_factor, self.min_scale)

    def state_dict(self) -> dict:
        return {
            "scale": self.scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "min_scale": self.min_scale,
            "max_scale": self.max_scale,
            "hysteresis": self.hysteresis,
            "finite_steps": self.finite_steps,
            "overflows_left": self.overflows_left,
        }

    def load_state_dict(self, state: dict) -> None:
        self._check_fields(state)
        self._set(**state)

    def _set(
        self,
        scale,
        growth_factor,
        backoff_factor,
        growth_interval,
        min_scale,
        max_scale,
        hysteresis,
        finite_steps,
        overflows_left,
    ):
        """Check everything first, assign afterwards: a refused state changes nothing."""
        scale = _power_of_two("scale", scale)
        growth_factor = _power_of_two("growth_factor", growth_factor)
        backoff_factor = _power_of_two("backoff_factor", backoff_factor)
        min_scale = _power_of_two("min_scale", min_scale)
        max_scale = _power_of_two("max_scale", max_scale)
        if growth_factor <= 1 or backoff_factor >= 1:
            raise ValueError(
                "growth_factor must be above 1 and backoff_factor below 1, received "
                f"{growth_factor:g} and {backoff_factor:g}."
            )
        if not min_scale <= scale <= max_scale:
            raise ValueError(
                f"The scale {scale:g} is outside [min_scale, max_scale] = "
                f"[{min_scale:g}, {max_scale:g}]: change it or the bounds."
            )
        growth_interval = _integer("growth_interval", growth_interval, 1)
        hysteresis = _integer("hysteresis", hysteresis, 1)
        finite_steps = _integer("finite_steps", finite_steps, 0, growth_interval - 1)
        overflows_left = _integer("overflows_left", overflows_left, 0, hysteresis)

        self.scale = scale
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval = growth_interval
        self.min_scale, self.max_scale = min_scale, max_scale
        self.hysteresis = hysteresis
        self.finite_steps = finite_steps
        self.overflows_left = overflows_left


def resolve(loss_scale) -> LossScale:
    """Turn what users write into a loss scale.

    Parameters
    ----------
    loss_scale : None, number, 'dynamic' or LossScale
        None is no scale, a number a static one, 'dynamic' one with the default settings; an object
        is returned as it is, so that several trainers can share it.

    Raises
    ------
    ValueError, TypeError
        One sentence, for anything else.
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


def _integer(name: str, value, low: int, high: Optional[int] = None) -> int:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and low <= value and (high is None or value <= high):
        return int(value)
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise ValueError(f"{name} must be a whole number {bounds}, received {value!r}.")
