"""The Trainer: a `gluon.Trainer` with a loss scale, and the order of its parameters."""

import re
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Union

from gluon_amp.base.messages import scale_text
from gluon_amp.optimizer import create
from gluon_amp.trainer import guards
from gluon_amp.trainer.loss_scale import BY_DTYPE, LossScaleOption, NoLossScale
from gluon_amp.trainer.report import StepReport
from gluon_amp.trainer.scaled_trainer import MAX_CONSECUTIVE_SKIPS, OnStep, ScaledTrainer

import mxnet as mx
from mxnet import gluon


class Trainer(ScaledTrainer):
    """A `gluon.Trainer` that scales the loss, checks for overflow and keeps float32 masters.

        with autograd.record():
            loss = loss_fn(net(data), label)
        trainer.backward(loss)
        report = trainer.step(batch_size)

    Without a loss scale it is a `gluon.Trainer`: nothing is checked, and `loss.backward()` works.

    Parameters
    ----------
    params : ParameterDict, dict or list of Parameter
        The parameters of a net that has been cast already.
    optimizer : str or mxnet.optimizer.Optimizer
        'sgd', 'nag', 'adam', 'adamw', 'lars' and 'lamb' are those of `gluon_amp.optimizer`. Any
        other name that MXNet knows is built with ``multi_precision=True``, and an Optimizer gets it
        if a parameter is float16.
    optimizer_params : dict
        The optimizer's arguments, if `optimizer` is a name.
    kvstore : str or KVStore
        As in `gluon.Trainer`. It reduces the gradients; the trainer makes the update.
    compression_params : dict
        As in `gluon.Trainer`; None with a loss scale.
    update_on_kvstore : None or False
        Both mean that the trainer makes the update. True is refused: a kvstore has no masters.
    loss_scale : None, number, 'dynamic' or LossScale
        The default is 'dynamic' if a parameter is float16 or used in float16, else None. Trainers
        may share an object; a backward pass that they share then counts once.
    max_consecutive_skips : int
        `step` raises after this number of overflows in a row at a scale that cannot go lower, or
        where a lower one would not help.
    on_skip : callable
        Called with the `StepReport` of each skipped step.
    check_finite : bool, optional
        True checks gradients and skips steps without a loss scale too; use `backward` then. None
        checks with a scale only, as torch.amp does: the check costs a pass over the gradients, and
        float32 and bfloat16 do not overflow where a training is sound.
    on_step : callable, optional
        Called with the trainer and the `StepReport` of an update that is about to be made, which
        has the norm of its gradients and its loss. If it returns False, the step is skipped and
        undone, and the loss scale stays. Several workers have to decide alike: the norm is that of
        all of them, the loss is not. It implies ``check_finite=True``.

    Raises
    ------
    TypeError
        For a net in place of its parameters, an optimizer that is neither a name nor an Optimizer,
        and an unknown argument: those of the optimizer stand in `optimizer_params`.
    ValueError
        When the kvstore would make the update or compress scaled gradients, or when a parameter is
        stored as row_sparse and gradients are checked. Without a check, `step` is all that works
        with such parameters.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(1, in_units=2), 'float16')
    >>> net.initialize(mx.init.One())
    >>> trainer = amp.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.5}, loss_scale=128)
    >>> with mx.autograd.record():
    ...     loss = net(mx.nd.array([[1, 2]]))
    >>> trainer.backward(loss)
    >>> trainer.step(batch_size=1).applied, net.weight.data().asnumpy().tolist()
    (True, [[0.5, 0.0]])
    """

    _stock_order: Optional[List[gluon.Parameter]] = None

    def __init__(
        self,
        params: Union[Mapping[str, gluon.Parameter], Sequence[gluon.Parameter]],
        optimizer: Union[str, mx.optimizer.Optimizer],
        optimizer_params: Optional[Dict[str, Any]] = None,
        kvstore: Union[str, mx.kvstore.KVStore, None] = "device",
        compression_params: Optional[Dict[str, Any]] = None,
        update_on_kvstore: Optional[bool] = None,
        loss_scale: LossScaleOption = BY_DTYPE,
        max_consecutive_skips: int = MAX_CONSECUTIVE_SKIPS,
        on_skip: Optional[Callable[[StepReport], None]] = None,
        check_finite: Optional[bool] = None,
        on_step: Optional[OnStep] = None,
        **others: NoReturn,
    ) -> None:
        guards.check_params(params, others)
        guards.check_kvstore(kvstore, update_on_kvstore)
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            optimizer = create(optimizer, **(optimizer_params or {}))
            optimizer_params = None
        if isinstance(params, (dict, gluon.ParameterDict)):
            self._stock_order = [params[name] for name in sorted(params)]
            params = [params[name] for name in sorted(params, key=_natural_key)]
        super().__init__(
            params,
            optimizer,
            optimizer_params,
            kvstore=kvstore,
            compression_params=compression_params,
            update_on_kvstore=None if guards.stored_sparse(params) else False,
        )
        self.start_scaling(loss_scale, check_finite, max_consecutive_skips, on_skip, on_step)

    def __repr__(self) -> str:
        count, skipped = len(self.parameters), self.skips.total
        parts = [
            type(self.optimizer).__name__,
            f"learning_rate={self.learning_rate:g}",
            f"{count} parameter{'s' if count != 1 else ''}",
        ]
        if not isinstance(self.loss_scale, NoLossScale):
            parts.append(f"{type(self.loss_scale).__name__} at {scale_text(self.loss_scale.scale)}")
        if skipped:
            parts.append(f"{skipped} step{'s' if skipped != 1 else ''} skipped")
        return f"Trainer({', '.join(parts)})"

    @property
    def stock_order(self) -> List[gluon.Parameter]:
        return self._stock_order or self.parameters


def _natural_key(name: str) -> list:
    """Return a sort key by which `dense9` comes before `dense10`.

    gluon.Trainer sorts names as text, and states are saved in that order. If a net is built twice
    in a process, its layers are `dense8` and `dense9` first, and `dense9` and `dense10` later. In
    the order of text they would swap their states.
    """
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
