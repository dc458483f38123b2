"""Why a step overflowed, and what helps.

`diagnose` runs the batch again with hooks (`replay`). The outputs and the gradients of each block
show which block overflows first, and a search in its graph shows which operator (`graph_search`).
"""

import dataclasses
import re
from typing import Callable, Iterable, List, Optional, Tuple, Union

import numpy as np

from gluon_amp.base.messages import scale_text
from gluon_amp.casting.arguments import arrays_in
from gluon_amp.casting.statistics import arrays_of
from gluon_amp.casting.tracing import named_blocks
from gluon_amp.inspection.graph_search import LOSS, Site, backward_site, forward_site, hidden_site
from gluon_amp.inspection.replay import Replay, inputs_of, replaying
from gluon_amp.inspection.unchanged import unchanged
from gluon_amp.inspection.values import (
    Range,
    is_finite,
    non_finite_text,
    paragraph,
    range_text,
    value_range,
)
from gluon_amp.trainer import guards
from gluon_amp.trainer.first_scale import largest_power
from gluon_amp.trainer.loss_scale import FLOOR, DynamicLossScale, LossScale, resolve

from mxnet import autograd, gluon, nd

CAUSES = "a division by 0, a log or root of what is not above 0, or diverged weights"


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` returns.

    Attributes
    ----------
    verdict : str
        'ok', 'bad_data', 'non_finite_parameter', 'forward_overflow' or 'backward_overflow'. Where
        several hold, the first in this order, since it explains the others.
    block : str or None
        Path of the first block where it happens, as in `'features.3'`. `''` is the net itself and
        `'loss'` the loss function; None is no block.
    op : str or None
        The operator in that block.
    value_range : (float, float) or None
        Smallest and largest finite number: of the data or the parameter that is not finite, of the
        input (forward), or of the gradient received (backward). With 'ok', of the gradients of all
        parameters.
    loss_scale : float
        The scale of the backward pass.
    scale_of : str
        Whose scale that is, as in `"the net's Trainer"`; `''` if it was an argument.
    recommended_scale : float or None
        After a backward overflow, the largest power of two with finite gradients.
    advice : str
        What to do, in one sentence.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> print(amp.Diagnosis('bad_data', loss_scale=128, advice='Drop sample 3 of this batch.'))
    bad_data
      Drop sample 3 of this batch.
    """

    verdict: str
    block: Optional[str] = None
    op: Optional[str] = None
    value_range: Range = None
    loss_scale: float = 1.0
    recommended_scale: Optional[float] = None
    advice: str = ""
    scale_of: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing overflows."""
        return self.verdict == "ok"

    @property
    def _place(self) -> str:
        """Return where it happens, in words."""
        place = "" if self.block is None else f" in {self.block or 'the net itself'}"
        return place + (f" ({self.op})" if self.op else "")

    def __repr__(self) -> str:
        parts = [f"{self.verdict}{self._place}", f"scale {scale_text(self.loss_scale)}"]
        if self.recommended_scale is not None:
            parts.append(f"recommended {scale_text(self.recommended_scale)}")
        return f"Diagnosis({', '.join(parts)})"

    def __str__(self) -> str:
        lines = [f"{self.verdict}{self._place}"]
        if self.value_range is not None:
            what = "gradients" if self.verdict == "ok" else "input range"
            span, scale = range_text(self.value_range), scale_text(self.loss_scale)
            owner = f" of {self.scale_of}" if self.scale_of else ""
            lines.append(f"  {what}: {span}, loss scale {scale}{owner}")
        lines.append(f"  {self.advice}")
        return "\n".join(paragraph(line, indent="  ") for line in lines)


def diagnose(
    net: gluon.Block,
    loss_fn: Callable,
    data: Union[nd.NDArray, List[nd.NDArray]],
    label: object,
    loss_scale: Union[LossScale, float, str, None] = "trainer",
) -> Diagnosis:
    """Run a batch again and find where it first overflows, and whether a lower scale helps.

    The batch runs in training mode. Afterwards the parameters, their gradients (also with
    `grad_req='add'`), the running statistics and the states of the Trainer and of numpy's and
    Python's random numbers are what they were. MXNet's random numbers advance, since their state
    cannot be read; so dropout masks differ from those of the step that overflowed. A net whose
    initialization was deferred is initialized.

    Parameters
    ----------
    net : Block
        Cast or not. In parts that are neither cast nor hybridized, only the block is named, and no
        operator.
    loss_fn : callable
        `loss_fn(net(data), label)` returns the loss, or a list of losses, in float32.
    data : NDArray or list of NDArray
        The net's input, on its device; a list or tuple holds several inputs.
    label : any object that loss_fn accepts
        The second argument of `loss_fn`.
    loss_scale : 'trainer', 'dynamic', number, LossScale or None
        The scale to try: the current one of the net's Trainer, or 65536 without one; 65536 for
        'dynamic', the current one of an object, 1 for None. After a skipped step,
        `report.loss_scale` is the one that overflowed.

    Returns
    -------
    Diagnosis

    Raises
    ------
    TypeError
        The data are not NDArrays, or the loss is none or float16.
    RuntimeError
        MXNet cannot run the net, or the net has averaged weights at the moment (`EMA.applied`).

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(1, in_units=2), 'float16')
    >>> net.initialize(mx.init.One())
    >>> data, label = mx.nd.array([[300, 1]]), mx.nd.zeros((1, 1))
    >>> diagnosis = amp.diagnose(net, mx.gluon.loss.L2Loss(), data, label, loss_scale=128)
    >>> diagnosis.verdict, diagnosis.op, diagnosis.recommended_scale
    ('backward_overflow', 'FullyConnected', 0.5)
    """
    data = inputs_of(data, "diagnose")
    parameters = net.collect_params().values()
    guards.check_own_weights(parameters)
    by_trainer = loss_scale == "trainer"
    loss_scale, owner = _scale_of_trainer(parameters) if by_trainer else (resolve(loss_scale), "")
    with unchanged("diagnose", net):
        diagnosis = _bad_data(data, label) or _bad_parameter(net, data)
    if diagnosis is None:
        with replaying("diagnose", net, loss_fn) as replay:
            replay.forward(loss_fn, data, label)
            diagnosis = _forward_overflow(replay) or _backward_result(replay, loss_scale)
    return dataclasses.replace(diagnosis, loss_scale=loss_scale.scale, scale_of=owner)


def _scale_of_trainer(parameters: Iterable[gluon.Parameter]) -> Tuple[LossScale, str]:
    """Return the largest loss scale with which these parameters are trained, and whose it is."""
    trainers = {id(p._trainer): p._trainer for p in parameters if p._trainer is not None}.values()
    if not trainers:
        return resolve("dynamic"), "a Trainer before its first step"
    # `_amp_loss_scaler` is that of mxnet.contrib.amp. A stock trainer has no scale.
    owners = (getattr(one, "_amp_loss_scaler", one) for one in trainers)
    scales = [resolve(getattr(one, "loss_scale", None)) for one in (*trainers, *owners)]
    return max(scales, key=lambda one: one.scale), "the net's Trainer"


# ------------------------------------------------------------------------------- data, parameters


def _bad_data(data: Tuple[nd.NDArray, ...], label: object) -> Optional[Diagnosis]:
    names = [f"data[{k}]" for k in range(len(data))] if len(data) > 1 else ["data"]
    arrays = [*zip(names, data), *(("label", array) for array in arrays_in(label))]
    for name, array in arrays:
        if not is_finite(array):
            samples = np.nonzero(~np.isfinite(array.asnumpy()))[0]
            advice = (
                f"Fix or drop sample {samples[0]} of this batch, since {name} holds "
                f"{non_finite_text(array)}: no dtype or loss scale helps against that."
            )
            return Diagnosis("bad_data", value_range=value_range(array), advice=advice)
    return None


def _bad_parameter(net: gluon.Block, data: Tuple[nd.NDArray, ...]) -> Optional[Diagnosis]:
    if not all(arrays_of([parameter]) for parameter in net.collect_params().values()):
        with autograd.pause():
            net(*data)  # which initializes it
    for path, block in named_blocks(net):
        arrays = ((p.name, a) for p in block._reg_params.values() for a in arrays_of([p]))
        for name, array in arrays:
            if not is_finite(array):
                advice = (
                    f"Go back to a checkpoint in which {name} is finite, since it holds "
                    f"{non_finite_text(array)} now, and then lower the learning rate or clip the "
                    "gradients."
                )
                span = value_range(array)
                return Diagnosis("non_finite_parameter", path, value_range=span, advice=advice)
    return None


# --------------------------------------------------------------------------------- forward


def _forward_overflow(replay: Replay) -> Optional[Diagnosis]:
    for call in replay.calls:
        if not all(map(is_finite, call.outputs)):
            return _forward_diagnosis(forward_site(replay, call))
    if not all(map(is_finite, replay.losses)):
        span = value_range(*replay.calls[-1].outputs)
        advice = (
            "Check the labels and the loss function, which is not finite for outputs from "
            f"{range_text(span)}: no loss scale and no policy can help."
        )
        return Diagnosis("forward_overflow", LOSS, value_range=span, advice=advice)
    return None


def _forward_diagnosis(site: Site) -> Diagnosis:
    place, pin = _pin(site)
    advice = (
        f"Pin {place} to float32 and cast again, with {pin}: its result does not fit float16, and "
        "no lower loss scale can help in the forward pass."
    )
    if site.dtype != "float16" or site.in_float32:
        where = f"it computes in {site.dtype}"
        if site.dtype == "float16":
            where = "its result is not finite in float32 either"
        advice = (
            f"Look there for {CAUSES}: {where}, so neither a pin nor a lower loss scale can help."
        )
    elif site.is_cast:
        advice = (
            "Scale the input down: float16 ends at 65504. Or keep this block in float32 with "
            f"{pin}."
        )
    return Diagnosis("forward_overflow", site.block, site.op, site.value_range, advice=advice)


def _pin(site: Site) -> Tuple[str, str]:
    """Return what to pin, a block or an operator that is in none, and the call for float32."""
    if site.block:
        return f"block {site.block}", f"policy.pin(blocks=[r'^{re.escape(site.block)}$'])"
    return f"the operator {site.op}", f"policy.pin(ops=[{site.op!r}])"


# --------------------------------------------------------------------------------- backward


def _backward_result(replay: Replay, loss_scale: LossScale) -> Diagnosis:
    scale = loss_scale.scale
    if replay.backward(scale):
        gradients = (array for arrays in replay.gradients.values() for array in arrays)
        advice = f"Nothing to do: everything is finite at loss scale {scale_text(scale)}."
        return Diagnosis("ok", value_range=value_range(*gradients), advice=advice)
    recommended = None
    if scale > FLOOR and replay.backward(FLOOR):
        recommended = largest_power(FLOOR, scale / 2, replay.backward)
    hidden = None if recommended else hidden_site(replay)
    if hidden is not None:
        return _forward_diagnosis(hidden)
    replay.backward(scale)  # whose gradients are searched
    site = backward_site(replay)
    advice = _scale_advice(recommended, loss_scale) if recommended else _derivative_advice(site)
    place = site.block, site.op, site.value_range
    return Diagnosis("backward_overflow", *place, scale, recommended, advice)


def _scale_advice(scale: float, loss_scale: LossScale) -> str:
    advice = f"Lower the loss scale to {scale_text(scale)}, where this batch has finite gradients"
    if isinstance(loss_scale, DynamicLossScale):
        power = scale_text(scale).replace("^", "**")
        way = f"that low with min_scale={power}" if scale < loss_scale.min_scale else "there alone"
        advice += f" (a dynamic scale goes {way})"
    return f"{advice}."


def _derivative_advice(site: Site) -> str:
    helps = site.dtype == "float16" and not site.in_float32
    pin = f", or pin it to float32 with {_pin(site)[1]}" if helps else ""
    return (
        f"Add an epsilon there{pin}: a derivative is infinite or NaN, as that of a root, log or "
        "norm at 0 (float16 rounds numbers below 3e-8 to 0), so no lower loss scale can help."
    )
