"""How far the gradients are from the limits of float16."""

import math
from typing import List, NamedTuple, Optional

from gluon_amp.base.formats import FORMATS
from gluon_amp.base.messages import scale_text
from gluon_amp.inspection import look
from gluon_amp.inspection.values import WIDTH, Preformatted
from gluon_amp.trainer import guards
from gluon_amp.trainer.loss_scale import LARGEST, MARGIN_BITS, SMALLEST
from gluon_amp.trainer.scaled_trainer import check_scaled

from mxnet import gluon

FLOAT16 = FORMATS["float16"]

NAME = WIDTH - 41  # characters of a name
LINE = f"{{:{NAME}}} {{:>8}} {{:>8}} {{:>6}} {{:>6}} {{:>8}}"
HEAD = ("gradient of", "dtype", "largest", "0", "<2^-14", "headroom")


class GradientRow(NamedTuple):
    """The gradient of one parameter as its buffers hold it, multiplied by the loss scale.

    Attributes
    ----------
    name : str
    dtype : str
        The dtype it was computed in. A float32 buffer can hold a gradient computed in float16.
    size : int
        Number of elements, over all devices.
    largest : float
        Largest magnitude; inf or NaN after an overflow.
    zero : float
        Share of the elements that are exactly 0.
    subnormal : float
        Share of the elements below 2**-14 that are not 0: there float16 has less than 11 bits.
    headroom : float
        Bits between `largest` and 65504: log2(65504 / largest). It is -inf after an overflow, and
        inf for zeros and for a gradient computed in float32.
    """

    name: str
    dtype: str
    size: int
    largest: float
    zero: float
    subnormal: float
    headroom: float


class GradientReport(Preformatted):
    """What `gradient_report` returns; its text is a table.

    Attributes
    ----------
    rows : list of GradientRow
        In the order of the net's parameters.
    loss_scale : float
        The scale that the gradients are multiplied by.
    recommended_scale : float or None
        The largest power of two with which the largest float16 gradient stays 3 bits below 65504.
        This is NVIDIA's rule, scale * max|gradient| < 65504, with a margin for other batches and
        for the gradients of activations, which the report does not see. None without a float16
        gradient, for zeros, and after an overflow.
    """

    def __init__(self, rows: List[GradientRow], loss_scale: float) -> None:
        self.rows = rows
        self.loss_scale = loss_scale

    @property
    def recommended_scale(self) -> Optional[float]:
        float16_rows = (row for row in self.rows if row.dtype == "float16")
        largest = max((row.largest for row in float16_rows), default=0.0)
        if self.overflowed or largest == 0:
            return None
        exponent = math.floor(math.log2(FLOAT16.largest / largest * self.loss_scale)) - MARGIN_BITS
        return min(max(2.0**exponent, SMALLEST), LARGEST)

    @property
    def overflowed(self) -> List[str]:
        """Names of the parameters whose gradients are not finite."""
        return [row.name for row in self.rows if not math.isfinite(row.largest)]

    def __str__(self) -> str:
        lines = [LINE.format(*HEAD), *map(_line, self.rows)]
        return "\n".join([*lines, self._conclusion()])

    def __repr__(self) -> str:
        return f"GradientReport({len(self.rows)} gradients, {self._conclusion()})"

    def _conclusion(self) -> str:
        advice = "nothing to recommend: no float16 gradient but zeros"
        if self.overflowed:
            advice = "which overflowed: lower it and look again"
        elif self.recommended_scale is not None:
            advice = f"recommended {scale_text(self.recommended_scale)}"
        return f"loss scale {scale_text(self.loss_scale)}, {advice}"


def _line(row: GradientRow) -> str:
    name = row.name if len(row.name) <= NAME else f"…{row.name[1 - NAME :]}"
    bits = f"{row.headroom:.1f}" if math.isfinite(row.headroom) else "-"
    shares = (f"{share:.1%}" for share in (row.zero, row.subnormal))
    return LINE.format(name, row.dtype, f"{row.largest:.1e}", *shares, bits)


def gradient_report(net: gluon.Block, trainer: gluon.Trainer) -> GradientReport:
    """Return how far the current gradients are from the limits of float16.

    Call it after `trainer.backward` and before `trainer.step`. It reads the gradient buffers once
    and runs nothing. A zero can be exact (after an inactive ReLU, in an unused embedding) or
    flushed to zero; only a pass with a larger scale shows which. So `zero` is an upper bound of the
    share that was flushed. Where gradients do reach the smallest float16, `subnormal` is large too.

    Parameters
    ----------
    net : Block
        After its backward pass.
    trainer : Trainer
        The trainer of its parameters; only its loss scale is read.

    Raises
    ------
    TypeError
        The trainer has no loss scale.
    RuntimeError
        There was no scaled backward pass yet.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(1, in_units=2), 'float16')
    >>> net.initialize(mx.init.One())
    >>> trainer = amp.Trainer(net.collect_params(), 'sgd', loss_scale=128)
    >>> with mx.autograd.record():
    ...     loss = net(mx.nd.array([[1, 2]]))
    >>> trainer.backward(loss)
    >>> amp.gradient_report(net, trainer).recommended_scale
    2048.0
    """
    check_scaled(trainer, "gradient_report")
    guards.check_own_weights(net.collect_params().values())
    try:
        scale = trainer.used_scale()
    except RuntimeError:
        raise RuntimeError(
            "There are no gradients to report on: call trainer.backward(loss) first, and "
            "gradient_report() before trainer.step()."
        ) from None
    rows = [_row(*pair) for pair in look.weight_gradients(net, (FLOAT16.name,))]
    return GradientReport(rows, scale)


def _row(parameter: gluon.Parameter, row: look.Row) -> GradientRow:
    headroom = math.inf
    if row.dtype == "float16" and row.largest != 0:
        finite = math.isfinite(row.largest)
        headroom = math.log2(FLOAT16.largest / row.largest) if finite else -math.inf
    subnormal = row.formats[FLOAT16.name].subnormal * (1 - row.zero)
    name, read = parameter.name, (row.dtype, row.size, row.largest, row.zero)
    return GradientRow(name, *read, subnormal, headroom)
