"""The functions of `mxnet.contrib.amp` for any trainer, so that migrating is one import."""

from contextlib import contextmanager
from typing import Callable, Iterator, Optional

from gluon_amp.optimizer.arrays import flatten
from gluon_amp.trainer import guards
from gluon_amp.trainer.loss_scale import BY_DTYPE, LossScaleOption
from gluon_amp.trainer.report import StepReport
from gluon_amp.trainer.scaled_trainer import (
    MAX_CONSECUTIVE_SKIPS,
    Losses,
    OnStep,
    ScaledTrainer,
    check_scaled,
)

from mxnet import gluon


def init_trainer(
    trainer: gluon.Trainer,
    loss_scale: LossScaleOption = BY_DTYPE,
    max_consecutive_skips: int = MAX_CONSECUTIVE_SKIPS,
    on_skip: Optional[Callable[[StepReport], None]] = None,
    check_finite: Optional[bool] = None,
    on_step: Optional[OnStep] = None,
) -> None:
    """Add the methods of `Trainer` to an existing trainer, MXNet's or Horovod's.

    The class of the instance becomes a subclass of its class, so an overridden reduction stays in
    use. A factor that its class has set for the gradients (Horovod: 1/size) is kept.

    Parameters
    ----------
    trainer : gluon.Trainer
        Not used yet, with the parameters of a net that has been cast already. Its optimizer gets
        ``multi_precision=True`` if a parameter is float16.
    loss_scale, max_consecutive_skips, on_skip, check_finite, on_step
        As in `Trainer`.

    Raises
    ------
    TypeError
        For anything else than a `gluon.Trainer`, such as an Optimizer.
    ValueError
        As for `Trainer`, or if the trainer has updated float16 parameters without masters.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(1, in_units=2), 'float16')
    >>> net.initialize(mx.init.One())
    >>> trainer = mx.gluon.Trainer(net.collect_params(), 'sgd')
    >>> amp.init_trainer(trainer)
    >>> trainer.loss_scale.scale
    65536.0
    """
    if not isinstance(trainer, gluon.Trainer):
        raise TypeError(f"init_trainer() expects a gluon.Trainer, received {trainer!r}.")
    if isinstance(trainer, ScaledTrainer):
        raise ValueError("This trainer scales its steps already: call init_trainer() once.")
    config = trainer._kvstore_params
    updating = trainer._update_on_kvstore if trainer._kv_initialized else None
    guards.check_kvstore(config["kvstore"], updating or config["update_on_kvstore"])
    stock = type(trainer)
    trainer.__class__ = type(f"Scaled{stock.__name__}", (ScaledTrainer, stock), {})
    try:
        trainer.start_scaling(loss_scale, check_finite, max_consecutive_skips, on_skip, on_step)
    except BaseException:
        trainer.__class__ = stock
        raise
    config["update_on_kvstore"] = None if guards.stored_sparse(trainer.parameters) else False


@contextmanager
def scale_loss(loss: Losses, trainer: gluon.Trainer) -> Iterator[Losses]:
    """Yield the loss times the scale, as contrib.amp does; prefer `Trainer.backward`.

    Use it inside `autograd.record()`, and call `autograd.backward` on the scaled loss. That call
    frees the graph, so a dynamic scale cannot look for its first value: see `DynamicLossScale`.

    Parameters
    ----------
    loss : NDArray, or list or tuple of them
        float32 or float64.
    trainer : Trainer, or any trainer after `init_trainer`
        The trainer whose scale is used.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(1, in_units=2), 'float16')
    >>> net.initialize(mx.init.One())
    >>> trainer = amp.Trainer(net.collect_params(), 'sgd', loss_scale=128)
    >>> with mx.autograd.record():
    ...     with amp.scale_loss(net(mx.nd.ones((1, 2))), trainer) as scaled:
    ...         mx.autograd.backward(scaled)
    >>> net.weight.grad().asnumpy().tolist()
    [[128.0, 128.0]]
    """
    check_scaled(trainer, "scale_loss")
    if not trainer.scaling:
        yield loss
        return
    losses = list(flatten(loss))
    guards.check_losses(losses)
    scale = trainer.begin_unended_pass(losses)
    scaled = [one * scale for one in losses]
    yield scaled if isinstance(loss, (list, tuple)) else scaled[0]


def unscale(trainer: gluon.Trainer) -> None:
    """Divide the gradients by the scale in place, for code that reads or changes them.

    Prefer `Trainer.clip_global_norm`, which needs no pass over the gradients.

    Raises
    ------
    TypeError
        For float16 gradients, as small ones would become zero.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(1, in_units=2), 'mixed_float16')
    >>> net.initialize(mx.init.One())
    >>> trainer = amp.Trainer(net.collect_params(), 'sgd', loss_scale=128)
    >>> with mx.autograd.record():
    ...     loss = net(mx.nd.ones((1, 2)))
    >>> trainer.backward(loss)
    >>> amp.unscale(trainer)
    >>> net.weight.grad().asnumpy().tolist()
    [[1.0, 1.0]]
    """
    check_scaled(trainer, "unscale")
    trainer.unscale_gradients()
