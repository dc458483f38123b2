"""Averaged weights: an exponential moving average of the masters, to evaluate with.

The rule is that of timm's `ModelEmaV2` (timm/utils/model_ema.py), in float32:
``average = decay * average + (1 - decay) * master``. But the two factors add up to exactly 1 in
float32. Those of 0.9999 do not if each is rounded, and a weight that stays the same would have an
average 0.02 % beside it. Only applied steps advance an average, and an evaluation gets copies, so
that nothing casts the average itself.
"""

import contextlib
from numbers import Real
from typing import Any, Dict, Iterator, List, Optional

import numpy as np

from gluon_amp.base.array_kinds import of_kind
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.base.messages import first_few
from gluon_amp.casting.parameters import cast_parameter
from gluon_amp.optimizer import masters
from gluon_amp.optimizer.arrays import add_scaled
from gluon_amp.optimizer.base import cast
from gluon_amp.trainer import guards
from gluon_amp.trainer.report import StepReport
from gluon_amp.trainer.scaled_trainer import ScaledTrainer, check_scaled

from mxnet import autograd, gluon, nd

# The attributes of a parameter that `EMA.applied` replaces. Without a trainer and gradients nothing
# trains, and nothing finds the masters in an optimizer's states. Casts, `reset_ctx` and the user
# write the others.
_REPLACED = (
    *("_data", "_grad", "_grad_req", "_trainer", "_dtype", "_ctx_list", "_ctx_map"),
    masters.HELD,
)


class EMA:
    """An exponential moving average of a net's trained parameters, in float32.

    After each applied step, ``average = decay * average + (1 - decay) * master``, where the master
    of a float32 weight is the weight itself. A skipped step changes nothing. The average begins
    with the masters as they are before the next step, or when it is first used, so that the net may
    be initialized or loaded after this call.

    Frozen parameters and running statistics have no average: the net uses its own, those of each
    device. (timm copies the statistics after each step, which has the same result.)

    An average is one float32 array for each trained parameter, on its first device.
    `save_checkpoint` saves those of its trainer, and `load_checkpoint` restores them.

    Parameters
    ----------
    net : gluon.Block
        Holds every parameter of the trainer. It may be uninitialized, and cast or not.
    trainer : Trainer
        The trainer whose steps advance the average. Set ``ema.trainer`` to another one to continue
        with that. A trainer may have several averages.
    decay : float
        The share of the average that each step keeps, between 0 and 1.

    Raises
    ------
    TypeError
        For a net that is not a Block, or a trainer without a loss scale.
    ValueError
        For a decay that is 0 or 1 in float32 or outside of them, a net without parameters, or a
        trainer of other parameters.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(1, in_units=1, use_bias=False), 'float16')
    >>> net.initialize(mx.init.One())
    >>> trainer = amp.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.5}, loss_scale=128)
    >>> ema = amp.EMA(net, trainer, decay=0.75)
    >>> with mx.autograd.record():
    ...     loss = net(mx.nd.ones((1, 1)))
    >>> trainer.backward(loss)
    >>> report = trainer.step(batch_size=1)  # the weight was 1 and is 0.5
    >>> with ema.applied():
    ...     net(mx.nd.ones((1, 1))).asnumpy().tolist()
    [[0.875]]
    """

    def __init__(self, net: gluon.Block, trainer: gluon.Trainer, decay: float = 0.9999) -> None:
        if not isinstance(net, gluon.Block):
            raise TypeError(f"EMA() expects a gluon.Block as its net, received {net!r}.")
        is_number = isinstance(decay, Real)
        if not (is_number and 0 < decay < 1 and 0 < np.float32(decay) < 1):
            raise ValueError(
                "decay must be a number between 0 and 1 in float32, such as 0.9999, received "
                f"{decay!r}."
            )
        self._net = net
        self._decay = float(decay)
        self._averages: Dict[gluon.Parameter, nd.NDArray] = {}
        self._trainer: Optional[ScaledTrainer] = None
        self.trainer = trainer

    @property
    def decay(self) -> float:
        """The share of the average that each step keeps."""
        return self._decay

    @property
    def trainer(self) -> ScaledTrainer:
        """The trainer whose steps advance the average; one that was replaced no longer does."""
        assert self._trainer is not None
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: gluon.Trainer) -> None:
        check_scaled(trainer, "EMA")
        params = list(self._net.collect_params().values())
        if not params:
            raise ValueError(
                f"This {type(self._net).__name__} has no parameters to average: pass the net that "
                "the trainer trains."
            )
        inside = {id(param) for param in params}
        outside = [param.name for param in trainer.parameters if id(param) not in inside]
        if outside:
            raise ValueError(
                f"The trainer updates {first_few(outside)}, which are not in this net: pass the "
                "net that holds all the parameters of the trainer."
            )
        guards.check_dense(params, "EMA()")
        if self._trainer is not None:
            self._trainer.step_listeners.remove(self._begin)
            self._trainer.report_listeners.remove(self._advance)
        trainer.step_listeners.append(self._begin)
        trainer.report_listeners.append(self._advance)
        self._trainer, self._params = trainer, params

    @property
    def averages(self) -> Dict[str, nd.NDArray]:
        """The float32 averages by the names of their parameters, of the parameters' kind.

        They are the arrays themselves, on the first devices: copy one to keep it.
        """
        guards.check_own_weights(self._params)
        self._begin()
        return {p.name: of_kind(one, p._data[0]) for p, one in self._averages.items()}

    def load(self, values: Dict[str, np.ndarray]) -> None:
        """Set averages, by their parameters' names; the others begin with the present masters."""
        self._averages = {
            param: nd.array(values[param.name], param.list_ctx()[0], values[param.name].dtype)
            for param in self._params
            if param.name in values
        }
        self._begin()

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which the net computes with the average, on all its devices.

        In it, the net saves and exports the average, with all float32 bits wherever it saves its
        masters. After it, also after an exception, parameters, gradients and masters are as they
        were, bit for bit: what was written to the net's parameters in it is gone.

        Raises
        ------
        RuntimeError
            In it, from this method and from the methods of trainers, as they would train, or save,
            the average in place of the weights.
        """
        guards.check_own_weights(self._params)
        self._begin()
        own = [param for param in self._params if param._data is not None]
        with autograd.pause():
            copies = [_copies(param, self._averages.get(param)) for param in own]
        before = [_exchange(param, *arrays) for param, arrays in zip(own, copies)]
        guards.AVERAGED.update(own)
        try:
            yield
        finally:
            guards.AVERAGED.difference_update(own)
            for param, attributes in zip(own, before):
                _restore(param, attributes)

    def _begin(self) -> None:
        """Begin the averages of parameters that are trained now and have none; forget others."""
        trained = [p for p in self._params if p.grad_req != "null" and p._data is not None]
        with autograd.pause():
            self._averages = {
                param: self._averages[param] if param in self._averages else _first(param)
                for param in trained
            }

    def _advance(self, report: StepReport) -> None:
        if not report.applied:
            return
        averages, values = [], []
        for param, average in self._averages.items():
            device = param.list_ctx()[0]
            average = self._averages[param] = average.as_in_context(device)
            held = (one for one in masters.held_masters(param) if one.context == device)
            master = next(held, None)
            averages.append(average)
            values.append(_wide(param._data[0]) if master is None else master)
        share = np.float32(1 - float(np.float32(self._decay)))  # 1 - share is exact in float32
        add_scaled(averages, values, float(share), wd=-1.0)


def averages_of(trainer: ScaledTrainer) -> List[EMA]:
    """Return the averages that a trainer's steps advance, in the order in which they were built."""
    owners = (getattr(one, "__self__", None) for one in trainer.report_listeners)
    return [one for one in owners if isinstance(one, EMA)]


def _wide(weight: nd.NDArray) -> nd.NDArray:
    """Return a weight as an array of `mx.nd`, in float32 if it is float16."""
    return cast(weight.as_nd_ndarray(), np.promote_types(weight.dtype, "float32"))


def _first(param) -> nd.NDArray:
    """Return a copy of a parameter's master, of its first device."""
    master = masters.master_of(param)
    return _wide(param._data[0] if master is None else master).copy()


def _copies(param, average):
    """Return new arrays for all devices, and masters: those of an average, or else copies."""
    if average is None:
        held = [master.copy() for master in masters.held_masters(param)]
        return [array.copy() for array in param.list_data()], held
    wide = [average.copyto(context) for context in param.list_ctx()]
    arrays = [of_kind(cast(one, own.dtype), own) for one, own in zip(wide, param.list_data())]
    return arrays, wide if np.dtype(param.dtype) == np.float16 else []


def _exchange(param, arrays, held) -> Dict[str, Any]:
    """Give a parameter arrays and masters; return the attributes that it had."""
    masters.held_masters(param)  # a list from now on, if it held none
    before = {name: vars(param)[name] for name in _REPLACED}
    vars(param).update({"_data": arrays, "_grad": None, "_trainer": None, masters.HELD: held})
    return before


def _restore(param, before) -> None:
    dtype = dtype_name(param.dtype)
    vars(param).update(before)
    if dtype != dtype_name(param.dtype):  # the net was cast meanwhile, and stays so
        cast_parameter(param, dtype)
