"""How far the gradients are from the limits of float16."""

import math
from typing import List, NamedTuple, Optional, Set, Tuple

import numpy as np

from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.parameters import dtype_of
from gluon_amp.casting.statistics import arrays_of
from gluon_amp.casting.tracing import named_blocks
from gluon_amp.formats import FORMATS
from gluon_amp.inspection import html
from gluon_amp.inspection.values import WIDTH
from gluon_amp.messages import scale_text
from gluon_amp.trainer.arrays import dense_part
from gluon_amp.trainer.loss_scale import LARGEST, MARGIN_BITS, SMALLEST, NoLossScale
from gluon_amp.trainer.scaled_steps import check_scaled

from mxnet import gluon

FLOAT16 = FORMATS["float16"]

HEAD = ("gradient of", "dtype", "largest", "0", "<2^-14", "headroom")
WIDTHS = (WIDTH - 41, 8, 8, 6, 6, 8)  # characters of each column


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


class GradientReport:
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
        lines = []
        for name, *others in (HEAD, *map(_cells, self.rows)):
            name = name if len(name) <= WIDTHS[0] else f"…{name[1 - WIDTHS[0] :]}"
            cells = (f"{cell:>{width}}" for cell, width in zip(others, WIDTHS[1:]))
            lines.append(" ".join([f"{name:{WIDTHS[0]}}", *cells]))
        return "\n".join([*lines, self._conclusion()])

    def __repr__(self) -> str:
        return f"GradientReport({len(self.rows)} gradients, {self._conclusion()})"

    def _repr_html_(self) -> str:
        return html.table(HEAD, map(_cells, self.rows), self._conclusion())

    def _conclusion(self) -> str:
        advice = "nothing to recommend: no float16 gradient but zeros"
        if self.overflowed:
            advice = "which overflowed: lower it and look again"
        elif self.recommended_scale is not None:
            advice = f"recommended {scale_text(self.recommended_scale)}"
        return f"loss scale {scale_text(self.loss_scale)}, {advice}"


def _cells(row: GradientRow) -> Tuple[str, ...]:
    """Return the cells of a row of the table, for the columns of `HEAD`."""
    bits = f"{row.headroom:.1f}" if math.isfinite(row.headroom) else "-"
    shares = (f"{share:.1%}" for share in (row.zero, row.subnormal))
    return (row.name, row.dtype, f"{row.largest:.1e}", *shares, bits)


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
    scale = 1.0
    if not isinstance(trainer.loss_scale, NoLossScale):
        scale = trainer.loss_scale.backward_scale
    if scale is None:
        raise RuntimeError(
            "There are no gradients to report on: call trainer.backward(loss) first, and "
            "gradient_report() before trainer.step()."
        )
    computed_in_float16 = _read_in_float16(net)
    rows = []
    for parameter in net.collect_params().values():
        if parameter.grad_req != "null" and arrays_of([parameter]):
            float16 = parameter.name in computed_in_float16 or dtype_of(parameter) == "float16"
            rows.append(_row(parameter, "float16" if float16 else "float32"))
    return GradientReport(rows, scale / trainer.window.predivided)


def _read_in_float16(net: gluon.Block) -> Set[str]:
    """Return the names of the parameters that an operator reads, and so differentiates, in float16.

    A norm reads its parameters in float32, whatever it computes in.
    """
    names = set()
    for _, block in named_blocks(net):
        binding = binding_of(block)
        for node in (binding and binding.nodes) or ():
            if node.dtype == "float16" and node.decision.kind != "norm":
                names.update(node.params)
    return names


def _row(parameter: gluon.Parameter, dtype: str) -> GradientRow:
    gradients = parameter.list_grad()
    values = np.concatenate([dense_part(array).asnumpy().ravel() for array in gradients])
    size = sum(int(np.prod(array.shape)) for array in gradients)
    magnitude = np.abs(values.astype(np.float32))
    largest = float(magnitude.max()) if magnitude.size else 0.0
    nonzero = int(np.count_nonzero(magnitude))
    zeros = magnitude.size - nonzero
    subnormal = int(np.count_nonzero(magnitude < FLOAT16.smallest_normal)) - zeros
    headroom = math.inf
    if dtype == "float16" and largest != 0:
        headroom = math.log2(FLOAT16.largest / largest) if math.isfinite(largest) else -math.inf
    # the shares are of all elements: rows that a row_sparse gradient does not hold are zeros
    zero_share, subnormal_share = 1 - nonzero / max(size, 1), subnormal / max(size, 1)
    return GradientRow(parameter.name, dtype, size, largest, zero_share, subnormal_share, headroom)
