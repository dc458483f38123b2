"""The Trainer: scaled backward, overflow check, clipping, and a step that is applied or undone."""

import contextlib
import logging
import re
import threading
from dataclasses import replace
from numbers import Real
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from gluon_amp.casting import stale_trainer, statistics
from gluon_amp.host import wait_until_unused
from gluon_amp.messages import some
from gluon_amp.optimizer import ExactFloat, create, masters
from gluon_amp.trainer import snapshot, states
from gluon_amp.trainer.arrays import all_finite, global_norm
from gluon_amp.trainer.loss_scale import NoLossScale, resolve
from gluon_amp.trainer.report import Skips, StepReport
from gluon_amp.trainer.window import Window

import mxnet as mx
from mxnet import autograd, gluon, nd

logger = logging.getLogger("gluon_amp")

MAX_CONSECUTIVE_SKIPS = 20


class _Default:
    def __repr__(self):
        return "by dtype"


BY_DTYPE = _Default()


class ScaledSteps:
    """What is added to a `gluon.Trainer`, of this class or, by `init_trainer`, of any other."""

    def start_scaling(self, loss_scale, max_consecutive_skips, on_skip) -> None:
        """Add the loss scale to a new trainer; arguments as in `Trainer`."""
        self._scale_by_dtype = loss_scale is BY_DTYPE
        self._dtypes = stale_trainer.dtypes_of(self.parameters)
        self._declared = self._declared_dtypes()
        if self._scale_by_dtype:
            computes_in_float16 = any("float16" in dtypes for dtypes in self._dtypes)
            loss_scale = "dynamic" if computes_in_float16 else None
        self._loss_scale = resolve(loss_scale)
        self._scaling = not isinstance(self._loss_scale, NoLossScale)
        if not isinstance(max_consecutive_skips, int) or max_consecutive_skips < 1:
            raise ValueError(
                "max_consecutive_skips must be a whole number of at least 1, received "
                f"{max_consecutive_skips!r}."
            )
        self._max_consecutive_skips = max_consecutive_skips
        self._on_skip = on_skip
        self.skips = Skips()
        self._watch = masters.Watch()
        self._check_master_precision()
        self._statistics = [p for p in self.parameters if statistics.is_statistic(p)]
        statistics.watch(self.parameters)
        if self.scaling:
            snapshot.undo_skips_of(self)
        self._window_lock = threading.Lock()  # GluonCV runs backward passes in threads
        self._begin_window()

    # ------------------------------------------------------------------ public state
    #
    # `loss_scale` and `window` are for everyone; the others are for the rest of this package and
    # for code that extends a trainer.

    @property
    def parameters(self) -> List[gluon.Parameter]:
        """All parameters, in the order that numbers them in the optimizer's states."""
        return self._params

    @property
    def statistics(self) -> List[gluon.Parameter]:
        """The running statistics among the parameters, which operators write."""
        return self._statistics

    @property
    def contexts(self) -> List[mx.Context]:
        """The devices; empty for a trainer without parameters."""
        return self._contexts

    @property
    def updaters(self) -> List[mx.optimizer.Updater]:
        """The optimizer's states, one `Updater` for each device."""
        return self._updaters

    @property
    def scaling(self) -> bool:
        """Whether there is a loss scale, so that gradients are checked and steps can be skipped."""
        return self._scaling

    @property
    def rescale(self) -> float:
        """The factor of the gradients, before they are divided by batch size and loss scale.

        It is the optimizer's `rescale_grad` when the trainer was built. Horovod divides it by the
        number of workers.
        """
        return self._scale

    @rescale.setter
    def rescale(self, factor: float) -> None:
        self._scale = factor

    # ------------------------------------------------------------------ scaling and backward

    @property
    def loss_scale(self):
        """The loss scale object; its `.scale` is what the next window of backward passes uses."""
        return self._loss_scale

    def backward(self, loss, retain_graph=False, train_mode=True):
        """Run the backward pass of a loss, or of several at once, with scaled gradients.

        The scale enters as the head gradient, so the loss itself stays what it is and cannot
        overflow. All backward passes until the next `step` use one scale, so that gradients which
        accumulate (`grad_req='add'`, or one loss after another) are in one unit: rescaling a
        float16 buffer in between could lose bits. Such buffers are to be zeroed after each step, as
        in Gluon without a scale.

        Operators such as `SoftmaxOutput`, which are their own loss and ignore head gradients,
        cannot be scaled so: use a loss.

        Parameters
        ----------
        loss : NDArray, or list of them, nested or not, on one or several devices
            float32 or float64, of any shape.
        retain_graph, train_mode : bool
            As in `mxnet.autograd.backward`.

        Raises
        ------
        TypeError
            For a loss in another dtype: cast the network's output to float32 before the loss.
        """
        losses = list(flatten(loss))
        if not losses:
            raise ValueError("backward() got no loss: pass an NDArray or a list of NDArrays.")
        if not self.scaling:
            autograd.backward(losses, retain_graph=retain_graph, train_mode=train_mode)
            return
        for one in losses:
            check_loss_dtype(one)
        with self.scaled_pass(losses) as scale:
            with autograd.pause():
                heads = [
                    nd.full(one.shape, scale, ctx=one.context, dtype=one.dtype) for one in losses
                ]
            autograd.backward(losses, heads, retain_graph=retain_graph, train_mode=train_mode)

    @property
    def window(self) -> Window:
        """The state between the first backward pass of a step and its update; frozen."""
        return self._window

    def begin_pass(self, losses) -> float:
        """Return the window's scale for a backward pass whose end will not be known.

        A skip restores every running statistic that was written since.
        """
        scale = self._open_window()
        self._add_pass(snapshot.begin_backward(self.statistics), losses, ended=False)
        return scale

    @contextlib.contextmanager
    def scaled_pass(self, losses=()) -> Iterator[float]:
        """Use the window's scale for a backward pass, and record what the pass writes."""
        scale = self._open_window()
        written = snapshot.begin_backward(self.statistics)
        yield scale
        self._add_pass(written, losses)

    def _open_window(self) -> float:
        with self._window_lock:
            if self._window.scale is None:
                self._window = replace(self._window, scale=self._loss_scale.scale)
            self._loss_scale.begin_backward(self._window.scale)
            return self._window.scale

    def _add_pass(self, written, losses, ended=True):
        last_chance = self.skips.at_floor + 1 >= self._max_consecutive_skips
        with self._window_lock:  # so that passes are added in the order in which they ended
            self._window = replace(
                self._window,
                passes=self._passes_and(written, ended),
                losses=tuple(one.detach() for one in losses) if last_chance else (),
            )
            self._loss_scale.backward_passes = self._window.passes

    def _passes_and(self, written, ended=True):
        if ended:
            written = tuple(copy.ended() for copy in written)
        return snapshot.followed_by(self._window.passes, written)

    def _begin_window(self):
        """Forget the window that a step has ended."""
        self._window = Window(shared_backwards=self._loss_scale.backwards)
        snapshot.end_step(undoes=self.scaling)

    def used_scale(self):
        """Return the scale that the gradients carry now.

        Raises
        ------
        RuntimeError
            When no backward pass of this trainer, or of one that shares its scale, came before.
        """
        if self._window.scale is not None:
            return self._window.scale
        if not self.scaling:
            return 1.0
        if self._loss_scale.backwards > self._window.shared_backwards:
            return self._loss_scale.backward_scale
        raise RuntimeError(
            "There is no scaled backward pass to step on: call trainer.backward(loss) in place of "
            "loss.backward(), once or more before each step, so that the gradients carry the loss "
            "scale."
        )

    # ------------------------------------------------------------------ reducing, measuring

    def current_window(self) -> Window:
        """Return the window, without what later backward passes have made obsolete.

        Raises
        ------
        RuntimeError
            When a backward pass added to gradients, or wrote only some of them, that were reduced
            or unscaled before.
        """
        window = self._window
        if not window.fresh:
            return window
        weights = [(p, array) for p in self._trained() for array in p.list_data()]
        written = {id(array): p.grad_req for p, array in weights if array._fresh_grad}
        if written:
            overwritten = all(written.get(one) == "write" for one in window.fresh)
            if not overwritten and (window.unscaled or (window.reduced and self._reduces())):
                raise RuntimeError(
                    "A backward pass wrote into gradients that were reduced or unscaled already, "
                    "which mixes two units: call clip_global_norm, allreduce_grads and unscale "
                    "after the last backward pass of a step."
                )
            for array in window.fresh.values():
                array._fresh_grad = True
            self._window = window = window.with_new_gradients()
        return window

    def mark_gradients(self, **changes) -> None:
        """Record what was done to the gradients, and detect backward passes from now on."""
        fresh = dict(self._window.fresh)
        for param in self._trained():
            for array in param.list_data():
                if array._fresh_grad:
                    array._fresh_grad = False
                    fresh[id(array)] = array
        self._window = replace(self._window, fresh=fresh, **changes)

    def _reduces(self) -> bool:
        """Return whether gradients are exchanged at all, between devices or workers."""
        return self._kvstore is not None or self._reduces_itself()

    def _reduces_itself(self) -> bool:
        """Return whether another class, such as Horovod's, has a reduction of its own."""
        return type(self)._allreduce_grads is not gluon.Trainer._allreduce_grads

    # ------------------------------------------------------------------ clipping

    def clip_global_norm(self, max_norm, batch_size=1):
        """Let the next step use gradients clipped to a norm; call it between backward and step.

        The norm is that of the true gradients: all parameters and dtypes together, after the
        reduction over devices and workers, without the loss scale. The gradients stay as they are;
        the factor goes into the update.

        Parameters
        ----------
        max_norm : float
            Above 0; inf only measures.
        batch_size : float
            What the gradients are to be divided by before they are measured. With the default the
            norm is that of the gradients as `gluon.utils.clip_global_norm` sees them in a float32
            run; with the batch size given to `step`, that of the gradient of the mean loss.

        Returns
        -------
        float
            The norm before clipping; inf or NaN after an overflow, when `step` will skip.
        """
        if not (isinstance(max_norm, Real) and max_norm > 0):
            raise ValueError(f"max_norm must be a number above 0, received {max_norm!r}.")
        _check_batch_size(batch_size)
        scale = self.used_scale()
        self._check_dtypes()
        window = self.current_window()
        if not window.reduced:
            self.allreduce_grads()
        grads = [grad for _, arrays in self._used_grads() for grad in self._distinct(arrays)]
        divisor = 1.0 if window.unscaled else scale
        norm = global_norm(grads) * (abs(self.rescale) / batch_size) / divisor
        clip_factor = max_norm / norm if max_norm < norm < np.inf else 1.0
        self.mark_gradients(clip_factor=clip_factor, grad_norm=norm)
        return norm

    # ------------------------------------------------------------------ the step

    def allreduce_grads(self):
        """Reduce the gradients over devices and workers; then call `update`, not `step`."""
        self.current_window()
        self._reduce()
        self.mark_gradients(reduced=True)

    def _reduce(self):
        self.ready()
        self._allreduce_grads()

    def step(self, batch_size, ignore_stale_grad=False):
        """Reduce the gradients and make one update, or skip it when they are not all finite.

        A skipped step is undone: parameters, masters, optimizer state, update counters, the
        learning rate schedule and BatchNorm's running statistics are bit for bit what they were,
        and all gradient buffers are empty, also those that accumulate.

        Parameters
        ----------
        batch_size : float
            Gradients are divided by it; 1 if the loss is a mean already.
        ignore_stale_grad : bool
            Leave parameters alone whose gradients no backward pass has written since the last step.

        Returns
        -------
        StepReport

        Raises
        ------
        RuntimeError
            Without a scaled backward pass before it, or when a parameter changed its dtype.
        UserWarning
            For a gradient that no backward pass has written, unless these are to be ignored.
        FloatingPointError
            After `max_consecutive_skips` overflows in a row that no lower scale could answer.
        """
        # Misuse is reported before anything is reduced.
        _check_batch_size(batch_size)
        self.used_scale()
        self._check_dtypes()
        window = self.current_window()
        self._check_fresh(ignore_stale_grad)
        if not window.reduced:
            self._reduce()
        return self._finish_step(batch_size, ignore_stale_grad)

    def update(self, batch_size, ignore_stale_grad=False):
        """What `step` does after reducing the gradients; for use after `allreduce_grads`."""
        _check_batch_size(batch_size)
        self.used_scale()
        self._check_dtypes()
        self.current_window()
        self._check_fresh(ignore_stale_grad)
        self.ready()
        return self._finish_step(batch_size, ignore_stale_grad)

    def _finish_step(self, batch_size, ignore_stale_grad) -> StepReport:
        scale, window = self.used_scale(), self._window
        checked = self._used_grads() if self.scaling else []
        grads = [grad for _, arrays in checked for grad in arrays]
        if all_finite(grads):
            self._apply(batch_size, scale, ignore_stale_grad)
            if grads:
                self._loss_scale.settle(True)
                self.skips = replace(self.skips, at_floor=0)
            overflow = ()
        else:
            overflow = tuple(name for name, arrays in checked if not all_finite(arrays))
            at_floor = self._loss_scale.at_floor
            self._skip()
            self._loss_scale.settle(False)
            self.skips = self.skips.with_one_more(at_floor)
        report = StepReport(
            applied=not overflow,
            loss_scale=scale,
            next_loss_scale=self._loss_scale.scale,
            grad_norm=window.grad_norm,
            overflow=overflow,
            skipped_total=self.skips.total,
        )
        self._begin_window()
        if overflow:
            self._report_skip(report, window)
        return report

    def _apply(self, batch_size, scale, ignore_stale_grad):
        window = self._window
        divisor = 1.0 if window.unscaled else scale
        # Dividing by a power of two last keeps the result's digits the same for every scale.
        factor = self.rescale / batch_size * window.clip_factor / divisor
        self._check_and_rescale_grad(ExactFloat(factor))
        self._watch.follow_changed(self._unseen_entries())
        for array in window.fresh.values():
            array._fresh_grad = True  # gluon.Trainer looks at it
        self._update(ignore_stale_grad)
        self._watch.remember(self._unseen_entries())

    def _skip(self):
        own = self._window.passes
        shared = self._loss_scale.backward_passes if self._window.scale is None else ()
        snapshot.undo((*shared, *own))
        for param in self._trained():
            # Also 'write' buffers: one that no later backward pass writes would go on overflowing.
            param.zero_grad()
            for array in param.list_data():
                array._fresh_grad = False

    def _report_skip(self, report, window):
        names = some(report.overflow, limit=5)
        logger.info(
            "Step skipped: gradients of %s overflowed at loss scale %g; next scale %g, %d skipped "
            "so far.",
            names,
            report.loss_scale,
            report.next_loss_scale,
            report.skipped_total,
        )
        if self._on_skip is not None:
            self._on_skip(report)
        if self.skips.at_floor >= self._max_consecutive_skips:
            raise FloatingPointError(
                f"{self.skips.at_floor} steps in a row overflowed at loss scale "
                f"{report.loss_scale:g}, which cannot go lower, in the gradients of {names}: "
                f"{self._cause(window)}; amp.diagnose(net, loss_fn, data, label) finds the block."
            )

    def _cause(self, window: Window) -> str:
        """Return what is known of an overflow without running the network again."""
        for name, value in self.master_params().items():
            if not all_finite([value]):
                return f"the parameter {name} is not finite itself, so load a finite one"
        # A ReLU makes 0 of NaN, so a finite loss alone says little.
        after = [copy.after for one in window.passes for copy in one if copy.after is not None]
        if not all_finite([*window.losses, *after]):
            return (
                "the forward pass is not finite already, so look for infinite data and for overflow"
                " in the network"
            )
        return "the forward pass looks finite, so it is probably its gradient that overflows"

    def gradients(self) -> Iterator[nd.NDArray]:
        """Yield the gradients of all initialized parameters on all devices."""
        return (grad for param in self._trained() for grad in param.list_grad())

    def _trained(self):
        return [p for p in self.parameters if p.grad_req != "null" and p._data is not None]

    def _used_grads(self) -> List[Tuple[str, list]]:
        """Names of parameters and those of their gradients that this step will use.

        A reduction adds stale gradients to fresh ones, so there they count too. Where it crosses
        workers, this one cannot know which are fresh elsewhere: all count, so that all workers
        decide alike.
        """
        across_workers = self._reduces_itself() or self._distributed
        used = []
        for param in self._trained():
            pairs = list(zip(param.list_data(), param.list_grad()))
            fresh = [grad for data, grad in pairs if self._window.is_fresh(data)]
            reduced = across_workers or (self._kvstore is not None and fresh)
            used.append((param.name, [grad for _, grad in pairs] if reduced else fresh))
        return used

    def _distinct(self, grads: list) -> list:
        """Return gradients without their copies: after a reduction all devices hold the same."""
        return grads[:1] if self._reduces() else grads

    def _check_fresh(self, ignore_stale_grad):
        # gluon.Trainer says so only when it has marked other gradients as used already.
        for param in () if ignore_stale_grad else self._trained():
            if not all(map(self._window.is_fresh, param.list_data())):
                raise UserWarning(
                    f"No backward pass has written the gradient of {param.name} on every device "
                    "since the last step: call step(..., ignore_stale_grad=True) if a part of the "
                    "parameters is left out on purpose."
                )

    def ready(self) -> None:
        """Create the kvstore and give all devices and workers the first one's parameters.

        `step` does this by itself. Later calls do nothing.
        """
        if not self.parameters:
            self._kv_initialized = True
        if self._kv_initialized and not self._params_to_init:
            return
        # All devices and workers get the first one's statistics now, in the middle of a step.
        written = snapshot.copies(statistics.arrays_of(self.statistics)) if self.scaling else ()
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()
            # A worker pulls its first weights from the servers. Nothing else keeps MXNet from
            # pushing gradients meanwhile, and their sum would then arrive as the weights.
            for param in self.parameters:
                for array in param._data or ():
                    array.wait_to_read()
        self._window = replace(self._window, passes=self._passes_and(written))

    def _check_contexts(self):
        # gluon.Trainer fails without parameters, where it gets None here
        return super()._check_contexts() or []

    # ------------------------------------------------------------------ dtypes

    def _declared_dtypes(self):
        return [(p.dtype, getattr(p, "_amp_compute_dtype", None)) for p in self.parameters]

    def _check_dtypes(self):
        if self._declared_dtypes() != self._declared:  # the same dtype can be written differently
            stale_trainer.check(self.parameters, self._dtypes, computing=self._scale_by_dtype)

    def _check_master_precision(self):
        float16 = any(param == "float16" for param, _ in self._dtypes)
        if float16 and not self._optimizer.multi_precision:
            raise ValueError(
                f"{type(self._optimizer).__name__} has multi_precision=False, but there are "
                "float16 parameters, whose small updates it would lose: build it with "
                "multi_precision=True, or use gluon_amp.optimizer."
            )

    # ------------------------------------------------------------------ masters

    def masters(self) -> Iterator[Tuple[Tuple[int, int], nd.NDArray, nd.NDArray]]:
        """Yield (key, weight, master) for each float16 weight that has a master, on each device.

        The key is (number of the device, number of the parameter). A master may be older than its
        weight: see `refresh_masters`.
        """
        for device, updater in enumerate(self._updaters):
            for index, state in updater.states.items():
                param = self.parameters[index]
                if np.dtype(param.dtype) != np.float16 or param._data is None:
                    continue
                weight = param.list_data()[device]
                master, _ = masters.split(self._optimizer, weight, state)
                if master is not None:
                    yield (device, index), weight, master

    def _unseen_entries(self):
        """Those of `masters` whose update does not itself look at the weight."""
        follows = getattr(self._optimizer, "syncs_master", lambda weight: False)
        return (entry for entry in self.masters() if not follows(entry[1]))

    def refresh_masters(self):
        """Let the masters follow weights that were written since the last step.

        `step` does this by itself. Elements of a master whose rounding is the weight's element
        keep all their bits.
        """
        for _, weight, master in self.masters():
            masters.sync_master(weight, master)

    def master_params(self) -> Dict[str, nd.NDArray]:
        """Float32 values of all initialized parameters, by name, from the first device.

        The arrays are the trainer's own where there is a master, and the parameter's where it is
        float32; copy them to keep them.
        """
        self.refresh_masters()
        found = {index: master for (device, index), _, master in self.masters() if device == 0}
        values = {}
        for index, param in enumerate(self.parameters):
            if param._data is None:
                continue
            data = param.list_data()[0]
            wait_until_unused(data)  # the next reader may be the host
            if index in found:
                values[param.name] = found[index]
            elif np.dtype(data.dtype) == np.float16:
                values[param.name] = data.astype("float32")
            else:
                values[param.name] = data
        return values

    # ------------------------------------------------------------------ states

    def state_dict(self) -> dict:
        """Return what a resumed run needs besides the parameters: see `states.collect`."""
        self.ready()
        return states.collect(self)

    def load_state_dict(self, saved: dict) -> None:
        """Take over what `state_dict` returned: see `gluon_amp.trainer.states.restore`."""
        self.ready()
        states.restore(self, saved)
        self._watch.forget()
        self._begin_window()

    def save_states(self, fname):
        """Write `state_dict` to a file, which is either the old or the complete new one."""
        states.write(fname, self.state_dict())

    def load_states(self, fname):
        """Read a file that `save_states` wrote, loss scale and counters included.

        Files of stock MXNet's `gluon.Trainer` or `Module` are read too, of the same optimizer and
        of parameters of any dtype; the loss scale and the skips then stay this trainer's own.
        Nothing is executed.

        Raises
        ------
        ValueError
            For a file that is truncated, damaged or foreign, or states that do not fit: see
            `gluon_amp.trainer.states.check_fit`. Nothing is changed then.

        Warns
        -----
        UserWarning
            When the saved learning rate, weight decay or another setting differs: this trainer's
            own is kept.
        """
        self.ready()
        self.load_state_dict(states.read(fname, self))

    @property
    def stock_order(self) -> List[gluon.Parameter]:
        """All parameters, in the order in which a stock `gluon.Trainer` has them."""
        return self.parameters


class Trainer(ScaledSteps, gluon.Trainer):
    """A `gluon.Trainer` that scales the loss, checks for overflow and keeps float32 masters.

        with autograd.record():
            loss = loss_fn(net(data), label)
        trainer.backward(loss)
        report = trainer.step(batch_size)

    With no loss scale it is a `gluon.Trainer`: nothing is checked, and `loss.backward()` will do.

    Parameters
    ----------
    params : ParameterDict, dict or list of Parameter
        Those of a net that has been cast already.
    optimizer : str or mxnet.optimizer.Optimizer
        'sgd', 'nag', 'adam', 'adamw', 'lars' and 'lamb' are those of `gluon_amp.optimizer`; any
        other name that MXNet knows is built with ``multi_precision=True``.
    optimizer_params : dict
        The optimizer's arguments, where it is given by name.
    kvstore : str or KVStore
        As in `gluon.Trainer`; gradients are reduced there, the update is made here.
    compression_params : dict
        As in `gluon.Trainer`, only without a loss scale.
    update_on_kvstore : None or False
    loss_scale : None, number, 'dynamic' or LossScale
        By default dynamic where a parameter is float16 or used in float16, else None. Trainers may
        share an object: one backward pass then counts once.
    max_consecutive_skips : int
        After so many overflows in a row at a scale that cannot go lower, `step` raises.
    on_skip : callable
        Called with the `StepReport` of each skipped step.

    Raises
    ------
    ValueError
        When the update is to be made on the kvstore, or gradients are to be compressed under a
        loss scale, or a given optimizer would update float16 weights without masters.

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

    def __init__(
        self,
        params,
        optimizer,
        optimizer_params=None,
        kvstore="device",
        compression_params=None,
        update_on_kvstore=None,
        loss_scale=BY_DTYPE,
        max_consecutive_skips=MAX_CONSECUTIVE_SKIPS,
        on_skip: Optional[Callable[[StepReport], None]] = None,
    ):
        check_kvstore(kvstore, update_on_kvstore)
        if isinstance(optimizer, str):
            optimizer = create(optimizer, **(optimizer_params or {}))
            optimizer_params = None
        self._in_stock_order = _in_text_order(params)
        super().__init__(
            _in_natural_order(params),
            optimizer,
            optimizer_params,
            kvstore=kvstore,
            compression_params=compression_params,
            update_on_kvstore=False,
        )
        if any(param._stype != "default" for param in self.parameters):
            raise ValueError(
                "Parameters stored as row_sparse are updated on the kvstore, before an overflow "
                "can be seen: store them dense, only their gradients may be row_sparse."
            )
        self.start_scaling(loss_scale, max_consecutive_skips, on_skip)
        check_compression(self)

    @property
    def stock_order(self) -> List[gluon.Parameter]:
        return self._in_stock_order or self.parameters


# ---------------------------------------------------------------------- checks


def check_kvstore(kvstore, update_on_kvstore):
    """Refuse updates on the kvstore, which come before an overflow can be seen."""
    if update_on_kvstore:
        raise ValueError(
            "update_on_kvstore=True would apply gradients before their overflow can be seen: leave "
            "it out, the update is made by the trainer."
        )
    if "async" in getattr(kvstore, "type", kvstore or ""):
        raise ValueError(
            "An async kvstore updates on its servers, before an overflow can be seen: use "
            "'dist_sync'."
        )


def check_compression(trainer):
    """Refuse gradient compression under a loss scale."""
    if trainer._scaling and trainer._compression_params:
        raise ValueError(
            "Gradient compression cuts scaled gradients at a fixed threshold, which hides "
            "overflows and changes meaning with the loss scale: leave compression_params out."
        )


def check_loss_dtype(loss):
    """Refuse a loss that is not float32 or float64."""
    if np.dtype(loss.dtype) not in (np.float32, np.float64):
        raise TypeError(
            f"The loss is {np.dtype(loss.dtype).name}, in which its sum and the scale overflow: "
            "cast the network's output to float32 before the loss."
        )


def _in_natural_order(params):
    """Put named parameters in an order that survives the counters in their names.

    gluon.Trainer sorts names as text, and states are saved by that order: `dense8` and `dense9`
    would get each other's states in the same net built again, as `dense10` and `dense9`.
    """
    if not isinstance(params, (dict, gluon.ParameterDict)):
        return params
    numbered = {name: re.split(r"(\d+)", name) for name in params}
    return [
        params[name]
        for name in sorted(
            numbered, key=lambda n: [int(t) if t.isdigit() else t for t in numbered[n]]
        )
    ]


def _in_text_order(params):
    """Named parameters in the order of a stock `gluon.Trainer`; None where they have no names."""
    if not isinstance(params, (dict, gluon.ParameterDict)):
        return None
    return [params[name] for name in sorted(params)]


def _check_batch_size(batch_size):
    if not (isinstance(batch_size, Real) and batch_size > 0):
        raise ValueError(f"batch_size must be a number above 0, received {batch_size!r}.")


def flatten(losses):
    """All losses in nested lists and tuples."""
    if isinstance(losses, (list, tuple)):
        for loss in losses:
            yield from flatten(loss)
    else:
        yield losses
