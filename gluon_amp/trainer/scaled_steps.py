"""Scaled training steps: backward pass, overflow check, clipping, and an update or a skip."""

import contextlib
import logging
import threading
from dataclasses import replace
from itertools import chain
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from gluon_amp.casting import statistics
from gluon_amp.casting.stale_trainer import DtypesAtBuild
from gluon_amp.host import wait_until_unused
from gluon_amp.messages import some
from gluon_amp.optimizer import ExactFloat, masters
from gluon_amp.trainer import guards, snapshot, state_files, states
from gluon_amp.trainer.arrays import all_finite, flatten, global_norm
from gluon_amp.trainer.loss_scale import LossScale, NoLossScale, resolve
from gluon_amp.trainer.report import Skips, StepReport
from gluon_amp.trainer.window import Window, clear_fresh, mark_fresh

import mxnet as mx
from mxnet import autograd, gluon, nd

logger = logging.getLogger("gluon_amp")

MAX_CONSECUTIVE_SKIPS = 20

# What `masters` yields: (number of the device, number of the parameter), weight, master.
Master = Tuple[Tuple[int, int], nd.NDArray, nd.NDArray]


class _ByDtype:
    def __repr__(self):
        return "by dtype"


BY_DTYPE = _ByDtype()


class ScaledSteps:
    """A `gluon.Trainer` with a loss scale: what `Trainer` and `init_trainer` add to MXNet's class.

    Attributes
    ----------
    skips : Skips
        How many steps were skipped.
    """

    def start_scaling(
        self,
        loss_scale,
        max_consecutive_skips: int,
        on_skip: Optional[Callable[[StepReport], None]],
    ) -> None:
        """Add the loss scale to a trainer that was not used yet; arguments as in `Trainer`."""
        self._scale_by_dtype = loss_scale is BY_DTYPE
        self._dtypes = DtypesAtBuild(self.parameters)
        if self._scale_by_dtype:
            loss_scale = "dynamic" if self._dtypes.any_float16() else None
        self._loss_scale = resolve(loss_scale)
        guards.check_max_consecutive_skips(max_consecutive_skips)
        self._max_consecutive_skips = max_consecutive_skips
        self._on_skip = on_skip
        self.skips = Skips()
        guards.check_masters(self._optimizer, (param for param, _ in self._dtypes.names))
        self._writes = masters.WriteDetector()
        self._statistics = [p for p in self.parameters if statistics.is_statistic(p)]
        statistics.watch(self.parameters)
        if self.scaling:
            guards.check_compression(self._compression_params)
            snapshot.enable_for(self)
        self._window_lock = threading.Lock()  # GluonCV runs backward passes in threads
        self._begin_window()

    # ------------------------------------------------------------------ public state
    #
    # `loss_scale` and `window` are for users. The others are for the rest of this package and for
    # code that extends a trainer.

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale object; its `.scale` is what the next window of backward passes uses."""
        return self._loss_scale

    @property
    def window(self) -> Window:
        """The state between the first backward pass of a step and its update; frozen."""
        return self._window

    @property
    def scaling(self) -> bool:
        """Whether there is a loss scale: gradients are checked, and steps can be skipped."""
        return not isinstance(self._loss_scale, NoLossScale)

    @property
    def rescale(self) -> float:
        """The factor of the gradients before they are divided by batch size and loss scale.

        It is the `rescale_grad` that the optimizer had when the trainer was built. Horovod's
        trainer divides it by the number of workers.
        """
        return self._scale

    @rescale.setter
    def rescale(self, factor: float) -> None:
        self._scale = factor

    @property
    def parameters(self) -> List[gluon.Parameter]:
        """All parameters; their positions are the keys of the optimizer's states."""
        return self._params

    @property
    def stock_order(self) -> List[gluon.Parameter]:
        """All parameters in the order of a stock `gluon.Trainer`."""
        return self.parameters

    @property
    def statistics(self) -> List[gluon.Parameter]:
        """The running statistics among the parameters, which operators write."""
        return self._statistics

    @property
    def contexts(self) -> List[mx.Context]:
        """The devices; empty without parameters."""
        return self._contexts

    @property
    def updaters(self) -> List[mx.optimizer.Updater]:
        """The holders of the optimizer's states, one for each device."""
        return self._updaters

    # ------------------------------------------------------------------ backward passes

    def backward(self, loss, retain_graph=False, train_mode=True):
        """Run the backward pass of one or several losses with scaled gradients.

        The scale enters as the head gradient, so the loss itself keeps its value and cannot
        overflow. All backward passes until the next `step` use one scale, so that gradients which
        accumulate (`grad_req='add'`, or one loss after another) have one unit. Rescaling a float16
        buffer in between could lose bits. Zero such buffers after each step, as in Gluon without a
        scale.

        Operators that are their own loss and ignore head gradients, such as `SoftmaxOutput`, cannot
        be scaled in this way. Use a loss instead.

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
        guards.check_losses(losses)
        with self.scaled_pass(losses) as scale:
            with autograd.pause():
                heads = [
                    nd.full(one.shape, scale, ctx=one.context, dtype=one.dtype) for one in losses
                ]
            autograd.backward(losses, heads, retain_graph=retain_graph, train_mode=train_mode)

    @contextlib.contextmanager
    def scaled_pass(self, losses=()) -> Iterator[float]:
        """Yield the window's scale for a backward pass, and record what the pass writes."""
        scale = self._open_window()
        written = snapshot.begin_backward(self.statistics)
        yield scale
        self._add_pass(written, losses)

    def begin_pass(self, losses) -> float:
        """Return the window's scale for a backward pass whose end will not be known.

        A skip then restores all that was written to running statistics since.
        """
        scale = self._open_window()
        self._add_pass(snapshot.begin_backward(self.statistics), losses, ended=False)
        return scale

    def _open_window(self) -> float:
        with self._window_lock:
            if self._window.scale is None:
                self._window = replace(self._window, scale=self._loss_scale.scale)
            self._loss_scale.begin_backward(self._window.scale)
            return self._window.scale

    def _add_pass(self, written: snapshot.Pass, losses, ended=True) -> None:
        next_skip_raises = self.skips.at_floor + 1 >= self._max_consecutive_skips
        with self._window_lock:  # so that passes are added in the order in which they ended
            window = self._window.with_pass(snapshot.ended(written) if ended else written)
            kept = tuple(one.detach() for one in losses) if next_skip_raises else ()
            self._window = replace(window, losses=kept)
            self._loss_scale.backward_passes = window.passes

    def _begin_window(self) -> None:
        """Replace the window after a step."""
        self._window = Window(shared_backwards=self._loss_scale.backwards)
        snapshot.end_step(undoes=self.scaling)

    def used_scale(self) -> float:
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

    # ------------------------------------------------------------------ gradients

    def gradients(self) -> Iterator[nd.NDArray]:
        """Yield the gradients of all initialized parameters on all devices."""
        return (grad for param in self._trained() for grad in param.list_grad())

    def current_window(self) -> Window:
        """Return the window, without values that a later backward pass made obsolete.

        Raises
        ------
        RuntimeError
            When a backward pass added to gradients that were reduced or unscaled before, or wrote
            only some of them.
        """
        window = self._window
        if not window.fresh:
            return window
        weights = [(param, array) for param in self._trained() for array in param.list_data()]
        written = {id(array): param.grad_req for param, array in weights if array._fresh_grad}
        if written:
            overwritten = all(written.get(key) == "write" for key in window.fresh)
            if not overwritten and (window.unscaled or (window.reduced and self._reduces())):
                raise RuntimeError(
                    "A backward pass wrote into gradients that were reduced or unscaled already, "
                    "which mixes two units: call clip_global_norm, allreduce_grads and unscale "
                    "after the last backward pass of a step."
                )
            mark_fresh(window.fresh.values())
            self._window = window = window.with_new_gradients()
        return window

    def mark_gradients(self, **changes) -> None:
        """Record in the window what was done to the gradients, and detect later backward passes.

        Parameters
        ----------
        **changes
            Fields of `Window`: `reduced`, `unscaled`, `clip_factor`, `grad_norm`.
        """
        cleared = clear_fresh(array for param in self._trained() for array in param.list_data())
        fresh = {**self._window.fresh, **{id(array): array for array in cleared}}
        self._window = replace(self._window, fresh=fresh, **changes)

    def clip_global_norm(self, max_norm, batch_size=1):
        """Clip the gradients of the next step to a norm; call it between `backward` and `step`.

        The norm is that of the true gradients: over all parameters and dtypes, after the reduction
        over devices and workers, without the loss scale. The gradients stay as they are. The update
        applies the factor.

        Parameters
        ----------
        max_norm : float
            Above 0; inf only measures.
        batch_size : float
            The gradients are divided by it before they are measured. With the default, the norm is
            that of `gluon.utils.clip_global_norm` in a float32 run. With the batch size of `step`,
            it is that of the gradient of the mean loss.

        Returns
        -------
        float
            The norm before clipping; inf or NaN after an overflow, when `step` will skip.
        """
        guards.check_positive("max_norm", max_norm)
        guards.check_positive("batch_size", batch_size)
        scale = self.used_scale()
        self._dtypes.check(computing=self._scale_by_dtype)
        window = self.current_window()
        if not window.reduced:
            self.allreduce_grads()
        grads = [grad for _, arrays in self._used_grads() for grad in self._distinct(arrays)]
        divisor = 1.0 if window.unscaled else scale
        norm = global_norm(grads) * (abs(self.rescale) / batch_size) / divisor
        clip_factor = max_norm / norm if max_norm < norm < np.inf else 1.0
        self.mark_gradients(clip_factor=clip_factor, grad_norm=norm)
        return norm

    def allreduce_grads(self):
        """Reduce the gradients over devices and workers; then call `update`, not `step`."""
        self.current_window()
        self._reduce()
        self.mark_gradients(reduced=True)

    def _reduce(self) -> None:
        self.ready()
        self._allreduce_grads()

    def _reduces(self) -> bool:
        """Return whether gradients are exchanged at all, between devices or workers."""
        return self._kvstore is not None or self._reduces_itself()

    def _reduces_itself(self) -> bool:
        """Return whether another class, such as Horovod's, has a reduction of its own."""
        return type(self)._allreduce_grads is not gluon.Trainer._allreduce_grads

    def _trained(self) -> List[gluon.Parameter]:
        return [p for p in self.parameters if p.grad_req != "null" and p._data is not None]

    def _used_grads(self) -> List[Tuple[str, list]]:
        """Return names of parameters, each with those of its gradients that this step uses.

        A reduction adds stale gradients to fresh ones, so both count there. Where it crosses
        workers, this worker cannot know which are fresh on others. All count then, so that all
        workers decide alike.
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

    # ------------------------------------------------------------------ the step

    def step(self, batch_size, ignore_stale_grad=False):
        """Reduce the gradients and make one update, or skip it if they are not all finite.

        A skipped step is undone: parameters, masters, optimizer state, update counters, the
        learning rate schedule and BatchNorm's running statistics are bit for bit what they were.
        All gradient buffers are zero, also those that accumulate.

        Parameters
        ----------
        batch_size : float
            Gradients are divided by it; 1 if the loss is a mean already.
        ignore_stale_grad : bool
            Do not update parameters whose gradients no backward pass has written since the last
            step.

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
            After `max_consecutive_skips` overflows in a row at a scale that cannot go lower.
        """
        self._check_step(batch_size, ignore_stale_grad)
        if not self._window.reduced:
            self._reduce()
        return self._finish_step(batch_size, ignore_stale_grad)

    def update(self, batch_size, ignore_stale_grad=False):
        """Make the update or the skip of `step` without a reduction; call `allreduce_grads` first.

        Parameters, return value and errors are those of `step`.
        """
        self._check_step(batch_size, ignore_stale_grad)
        self.ready()
        return self._finish_step(batch_size, ignore_stale_grad)

    def _check_step(self, batch_size, ignore_stale_grad) -> None:
        """Raise errors of the caller before anything is reduced."""
        guards.check_positive("batch_size", batch_size)
        self.used_scale()
        self._dtypes.check(computing=self._scale_by_dtype)
        window = self.current_window()
        # gluon.Trainer raises this in the middle of the update, after it has cleared some marks.
        for param in () if ignore_stale_grad else self._trained():
            if not all(map(window.is_fresh, param.list_data())):
                raise UserWarning(
                    f"No backward pass has written the gradient of {param.name} on every device "
                    "since the last step: call step(..., ignore_stale_grad=True) if a part of the "
                    "parameters is left out on purpose."
                )

    def _finish_step(self, batch_size, ignore_stale_grad) -> StepReport:
        scale, window = self.used_scale(), self._window
        checked = self._used_grads() if self.scaling else []
        grads = [grad for _, arrays in checked for grad in arrays]
        overflow = ()
        if all_finite(grads):
            self._apply(batch_size, scale, ignore_stale_grad)
            if grads:
                self._loss_scale.update_once(True)
                self.skips = replace(self.skips, at_floor=0)
        else:
            overflow = tuple(name for name, arrays in checked if not all_finite(arrays))
            at_floor = self._loss_scale.at_floor
            self._skip()
            self._loss_scale.update_once(False)
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

    def _apply(self, batch_size, scale, ignore_stale_grad) -> None:
        window = self._window
        divisor = 1.0 if window.unscaled else scale
        # The division by a power of two comes last, so the digits are the same for every scale.
        factor = self.rescale / batch_size * window.clip_factor / divisor
        self._check_and_rescale_grad(ExactFloat(factor))
        self._writes.sync_written(self._masters_to_sync())
        mark_fresh(window.fresh.values())  # gluon.Trainer reads the marks
        self._update(ignore_stale_grad)
        self._writes.record(self._masters_to_sync())

    def _skip(self) -> None:
        own = self._window.passes
        shared = self._loss_scale.backward_passes if self._window.scale is None else ()
        snapshot.undo((*shared, *own))
        for param in self._trained():
            # Also 'write' buffers: if no later backward pass wrote one, it would overflow again.
            param.zero_grad()
            clear_fresh(param.list_data())

    def _report_skip(self, report: StepReport, window: Window) -> None:
        """Log a skip, call `on_skip`, and raise after too many skips in a row."""
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
        """Return what is known about an overflow without another pass through the network."""
        for name, value in self.master_params().items():
            if not all_finite([value]):
                return f"the parameter {name} is not finite itself, so load a finite one"
        # The loss alone is not enough: a ReLU turns NaN into 0.
        snapshots = chain.from_iterable(window.passes)
        after = [one.after for one in snapshots if one.after is not None]
        if not all_finite([*window.losses, *after]):
            return (
                "the forward pass is not finite already, so look for infinite data and for overflow"
                " in the network"
            )
        return "the forward pass looks finite, so it is probably its gradient that overflows"

    # ------------------------------------------------------------------ kvstore

    def ready(self) -> None:
        """Create the kvstore, and copy the first device's and worker's parameters to the others.

        `step` calls it. Without new parameters, later calls do nothing.
        """
        if not self.parameters:
            self._kv_initialized = True
        if self._kv_initialized and not self._params_to_init:
            return
        # The statistics are copied too, in the middle of a step, and a skip has to restore them.
        written = snapshot.take(statistics.arrays_of(self.statistics)) if self.scaling else ()
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()
            # Workers pull their first weights from the servers. MXNet may push gradients before
            # these have arrived, and the sum of the gradients would then arrive as the weights.
            for array in statistics.arrays_of(self.parameters):
                array.wait_to_read()
        self._window = self._window.with_pass(snapshot.ended(written))

    def _check_contexts(self):
        # Without parameters MXNet's result is None, on which the constructor fails.
        return super()._check_contexts() or []

    # ------------------------------------------------------------------ masters

    def masters(self) -> Iterator[Master]:
        """Yield (key, weight, master) for each float16 weight that has a master, on each device.

        The key is (number of the device, number of the parameter). Call `refresh_masters` first if
        the weights may have been written since the last step.
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

    def _masters_to_sync(self) -> Iterator[Master]:
        """Yield those of `masters` that the update itself does not sync."""
        syncs = getattr(self._optimizer, "syncs_master", lambda weight: False)
        return (entry for entry in self.masters() if not syncs(entry[1]))

    def refresh_masters(self):
        """Update the masters of weights that were written since the last step.

        Where a master rounds to the weight it keeps all its bits; elsewhere it is set to the
        weight. `step` calls it.
        """
        for _, weight, master in self.masters():
            masters.sync_master(weight, master)

    def master_params(self) -> Dict[str, nd.NDArray]:
        """Return the float32 values of all initialized parameters by name, of the first device.

        An array is the master if there is one, or else a float32 parameter's own: copy it to keep
        it.
        """
        self.refresh_masters()
        first = {index: master for (device, index), _, master in self.masters() if device == 0}
        values = {}
        for index, param in enumerate(self.parameters):
            if param._data is None:
                continue
            data = param.list_data()[0]
            wait_until_unused(data)  # the caller may read it on the host
            if index in first:
                values[param.name] = first[index]
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
        """Restore what `state_dict` returned: see `gluon_amp.trainer.states.restore`."""
        self.ready()
        states.restore(self, saved)
        self._writes.clear()
        self._begin_window()

    def save_states(self, fname):
        """Write `state_dict` to a file, which is either the old or the complete new one."""
        state_files.write(fname, self.state_dict())

    def load_states(self, fname):
        """Restore the states from a file of `save_states`, with loss scale and counters.

        Files of stock MXNet's `gluon.Trainer` and `Module` are read too, if they are of the same
        optimizer; the parameters' dtypes may differ. The loss scale and the skip counters then stay
        this trainer's own. Nothing in a file is executed.

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
        self.load_state_dict(state_files.read(fname, self))
