"""Scaled steps: overflow check, clipping, and an update or a skip."""

import logging
import math
from dataclasses import replace
from itertools import chain
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from gluon_amp import kernels
from gluon_amp.base.array_kinds import set_to_zero
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.base.host import wait_until_unused
from gluon_amp.base.messages import first_few
from gluon_amp.base.writes import version
from gluon_amp.casting import snapshots
from gluon_amp.casting.stale_trainer import DtypesAtBuild
from gluon_amp.lowering.study import delayed_scaling
from gluon_amp.optimizer import ExactFloat, masters
from gluon_amp.optimizer.arrays import all_finite, finite, mean, square_sums
from gluon_amp.optimizer.base import cast, round_master
from gluon_amp.trainer import guards, reduction
from gluon_amp.trainer.loss_scale import GUESS
from gluon_amp.trainer.passes import Pass, clear_fresh, mark_fresh
from gluon_amp.trainer.report import StepReport
from gluon_amp.trainer.scaled_gradients import LossScaleOption, ScaledGradients

from mxnet import gluon, nd

logger = logging.getLogger("gluon_amp")

MAX_CONSECUTIVE_SKIPS = 20

# See `Trainer`: whether the update is made.
OnStep = Callable[[gluon.Trainer, StepReport], Optional[bool]]

# What `masters` yields: (number of the device, number of the parameter), weight, master.
Master = Tuple[Tuple[int, int], nd.NDArray, nd.NDArray]


class ScaledSteps(ScaledGradients):
    """The methods that `Trainer` and `init_trainer` add to a `gluon.Trainer`."""

    def start_scaling(
        self,
        loss_scale: LossScaleOption,
        check_finite: Optional[bool],
        max_consecutive_skips: int,
        on_skip: Optional[Callable[[StepReport], None]],
        on_step: Optional[OnStep],
    ) -> None:
        """Add the loss scale to a trainer that was not used yet; arguments as in `Trainer`."""
        guards.check_own_weights(self.parameters)
        kernels.prepare(self._contexts or ())
        dtypes = DtypesAtBuild(self.parameters)
        if any(param == "float16" for param, _ in dtypes.names):
            guards.check_masters(self)
            self._optimizer.multi_precision = True  # MXNet's default would lose small updates
            low = [one for one in self.parameters if dtype_name(one.dtype) == "float16"]
            masters.check_optimizer(self._optimizer, {len(one.shape or ()) for one in low})
        self._on_skip, self._on_step = on_skip, on_step
        self.keeps_losses = on_step is not None
        self._start_gradients(dtypes, loss_scale, check_finite, max_consecutive_skips)
        # An Updater refuses weights of `mx.np` if the optimizer was built without `npx.set_np()`.
        self._optimizer.allow_np_array = True
        self._writes = masters.WriteDetector()

    # ------------------------------------------------------------------ clipping

    def clip_global_norm(self, max_norm: float, batch_size: float = 1) -> float:
        """Clip the gradients of the next step to a norm; call it between `backward` and `step`.

        The norm is that of the true gradients: over all parameters and dtypes, after the reduction
        over devices and workers, without the loss scale. The gradients are reduced, but not
        clipped: the update applies the factor.

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
        guards.check_dense(self.parameters, "clip_global_norm()")
        max_norm = guards.positive("max_norm", max_norm)
        batch_size = guards.batch_size(batch_size, self.rescale)
        self.current_pass()  # raises if there is none
        self._dtypes.check(computing=self._scale_by_dtype)
        self._reduce_once()
        grads = [grad for _, arrays in self._used_grads() for grad in arrays]
        sums = square_sums(grads)
        # After a reduction all devices hold the same gradients, of which one copy counts.
        copies = [reduction.exchanges(self) and grad.context != self.contexts[0] for grad in grads]
        norm = math.sqrt(sum(one for one, copy in zip(sums, copies) if not copy))
        norm *= (abs(self.rescale) / batch_size) / self.used_scale()
        clip_factor = max_norm / norm if max_norm < norm < np.inf else 1.0
        finite = {id(grad): version(grad) for grad in grads} if np.isfinite(sums).all() else {}
        self.mark_gradients(clip_factor=clip_factor, norm=norm, finite=finite)
        return norm

    # ------------------------------------------------------------------ the step

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> StepReport:
        """Reduce the gradients and make one update, or skip it if they are not all finite.

        A skipped step is undone: parameters, masters, optimizer state, update counters, the
        learning rate schedule and BatchNorm's running statistics are bit for bit what they were.
        All gradient buffers are zero, also those that accumulate.

        Parameters
        ----------
        batch_size : float
            Gradients are divided by it; 1 if the loss is a mean already. An array of one element is
            read, which waits for it.
        ignore_stale_grad : bool
            Do not update parameters whose gradients no backward pass has written since the last
            step.

        Returns
        -------
        StepReport

        Raises
        ------
        ValueError
            For a batch size that is not a finite number above 0.
        RuntimeError
            Without a scaled backward pass before it, or when a parameter changed its dtype.
        UserWarning
            For a gradient that no backward pass has written, unless these are to be ignored.
        FloatingPointError
            After `max_consecutive_skips` overflows in a row at a scale that cannot go lower, or
            where a lower one would not help, as the forward pass or a parameter is not finite.
        """
        batch_size = guards.batch_size(batch_size, self.rescale)
        if guards.stored_sparse(self.parameters):
            return self._step_on_kvstore(batch_size, ignore_stale_grad)
        self._begin_step(ignore_stale_grad)
        self._reduce_once()
        return self._finish_step(batch_size, ignore_stale_grad)

    def update(self, batch_size: float, ignore_stale_grad: bool = False) -> StepReport:
        """Make the update or the skip of `step` without a reduction; call `allreduce_grads` first.

        Parameters, return value and errors are those of `step`.
        """
        batch_size = guards.batch_size(batch_size, self.rescale)
        guards.check_dense(self.parameters, "update()")
        self._begin_step(ignore_stale_grad)
        self.ready()
        return self._finish_step(batch_size, ignore_stale_grad)

    def _step_on_kvstore(self, batch_size, ignore_stale_grad) -> StepReport:
        """Make the step of a stock trainer, as parameters stored as row_sparse need it."""
        self._dtypes.check(computing=self._scale_by_dtype)
        for listener in tuple(self.step_listeners):
            listener()
        super().step(batch_size, ignore_stale_grad)
        report = StepReport(applied=True, loss_scale=1.0, next_loss_scale=1.0)
        self._end_step(report)
        return report

    def _begin_step(self, ignore_stale_grad) -> None:
        """Raise errors of the caller before anything is reduced, then call the listeners."""
        self.current_pass()  # raises if there is none
        self._dtypes.check(computing=self._scale_by_dtype)
        self.use_sums()
        gradients = self.current_gradients()
        # gluon.Trainer raises this in the middle of the update, after it has cleared some marks.
        for param in () if ignore_stale_grad else self.trained():
            if not all(map(gradients.is_fresh, param.list_data())):
                raise UserWarning(
                    f"No backward pass has written the gradient of {param.name} on every device "
                    "since the last step: call step(..., ignore_stale_grad=True) if a part of the "
                    "parameters is left out on purpose."
                )
        for listener in tuple(self.step_listeners):
            listener()

    def _finish_step(self, batch_size, ignore_stale_grad) -> StepReport:
        if self._on_step is not None and self._gradients.norm is None:
            self.clip_global_norm(math.inf, batch_size)
        stepped_on, gradients = self.current_pass(), self._gradients
        checked = self._used_grads() if self.scaling else []
        grads = [grad for _, arrays in checked for grad in arrays]
        report = StepReport(
            applied=gradients.still_finite(grads) or all_finite(grads),
            loss_scale=stepped_on.scale,
            next_loss_scale=self._loss_scale.scale,
            grad_norm=gradients.norm,
            skipped_total=self.skips.total,
            retried=stepped_on.retried,
            passes=self._sums.kept if self._sums.passes else 1,
            dropped=self._sums.dropped,
            loss=mean(self._losses) if self.keeps_losses else None,
        )
        cause = ""
        if not report.applied:
            report, cause = self._skip_overflow(report, checked)
        elif self._vetoes(report):
            self._skip()
            self.skips = self.skips.with_one_more(in_vain=False)
            report, cause = replace(report, applied=False), "on_step vetoed it"
        else:
            self._apply(batch_size, stepped_on.scale / gradients.divisor, ignore_stale_grad)
            if grads:
                self._passes.report(True)
                self.skips = replace(self.skips, in_vain=0)
        report = replace(
            report, next_loss_scale=self._loss_scale.scale, skipped_total=self.skips.total
        )
        delayed_scaling.end_step(self.parameters, report.applied)
        self._end_step(report)
        if not report.applied:
            at_floor = stepped_on.at_floor
            limit = self._loss_scale.limit if at_floor else "and a lower one would not help"
            self._report_skip(report, limit, cause)
        return report

    def _vetoes(self, report: StepReport) -> bool:
        """Return whether `on_step` says that an update is not to be made."""
        answer = None if self._on_step is None else self._on_step(self, report)
        return answer is not None and not answer

    def _skip_overflow(self, report: StepReport, checked: List) -> Tuple[StepReport, str]:
        """Skip a step whose gradients, as from `_used_grads`, overflowed; return its cause too."""
        stepped_on = self.current_pass()
        flags = iter(finite([grad for _, arrays in checked for grad in arrays]))
        finite_by_name = [(name, [next(flags) for _ in arrays]) for name, arrays in checked]
        overflow = tuple(name for name, flags in finite_by_name if not all(flags))
        fitting = self._fitting(stepped_on) if stepped_on.searching else None
        self._skip()
        self._passes.report(False, fitting)
        cause, curable = cause_of_overflow(self.parameters, stepped_on)
        fits_nowhere = stepped_on.searching and fitting is None
        in_vain = stepped_on.at_floor or fits_nowhere or not curable
        self.skips = self.skips.with_one_more(in_vain)
        why_not = stepped_on.not_repeated if stepped_on.searching else ""
        return replace(report, overflow=overflow, not_repeated=why_not), cause

    def _end_step(self, report: StepReport) -> None:
        self._end_passes()
        for listener in tuple(self.report_listeners):
            listener(report)

    def _apply(self, batch_size, scale, ignore_stale_grad) -> None:
        gradients = self._gradients
        # The division by a power of two comes last, so the digits are the same for every scale.
        factor = self.rescale / batch_size * gradients.clip_factor / scale
        self._check_and_rescale_grad(ExactFloat(factor))
        mark_fresh(gradients.fresh.values())  # gluon.Trainer reads the marks
        self._adopt_masters()
        syncs = getattr(self._optimizer, "syncs_master", lambda weight: False)
        fresh = (entry for entry in self.masters() if entry[1]._fresh_grad)
        updated = [entry for entry in fresh if not syncs(entry[1])]  # the update syncs the others
        seen = self._writes.sync_written(updated)
        if self._sums.in_use:
            self._update_with_sums()
            self._writes.record(seen, lambda weight: 1)
        else:
            self._update(ignore_stale_grad)
            writes = getattr(self._optimizer, "weight_writes", lambda weight: None)
            self._writes.record(seen, writes)

    def _update_with_sums(self) -> None:
        """Update with the sums: where an update takes no float32 gradient of a float16 weight, the
        master as a float32 weight, which is then rounded.
        """
        syncs = getattr(self._optimizer, "syncs_master", lambda weight: False)
        for device, updater in enumerate(self._updaters):
            fresh, narrow = [], {}
            for index, param in enumerate(self.parameters):
                if param.grad_req == "null" or not param.list_data()[device]._fresh_grad:
                    continue
                weight, gradient = param.list_data()[device], param.list_grad()[device]
                clear_fresh([weight])
                if np.dtype(weight.dtype) == np.float16 and not syncs(weight):
                    state = updater.states[index]
                    master, rest = masters.split(self._optimizer, weight, state)
                    narrow[index] = weight, master, state
                    updater.states[index] = masters.join(self._optimizer, master, None, rest)
                    weight = master
                fresh.append((index, gradient, weight))
            try:
                if fresh:
                    updater(*zip(*fresh))
            finally:
                for index, (weight, master, state) in narrow.items():
                    updater.states[index] = state
                    round_master(master, weight)

    def _skip(self) -> None:
        snapshots.undo(self.current_pass().written)
        for param in self.trained():
            # Also 'write' buffers: if no later backward pass wrote one, it would overflow again.
            set_to_zero(param.list_grad())
            clear_fresh(param.list_data())

    def _fitting(self, overflowed: Pass) -> Optional[float]:
        """Return the largest scale at which passes fit, the same on all workers.

        None if there is none. Call it after an overflow: gradients are overwritten.
        """
        own = overflowed.fitting
        if own is None:
            own = overflowed.scale * GUESS if all_finite(overflowed.losses) else 0.0
        return self._smallest_of_workers(own, overflowed.began)

    def _report_skip(self, report: StepReport, limit: str, cause: str) -> None:
        """Log a skip, call `on_skip`, and raise after too many skips in a row."""
        names = first_few(report.overflow, limit=5)
        why_not = f" (not repeated: {report.not_repeated})" if report.not_repeated else ""
        logger.info(
            "Step skipped: %s; next scale %g, %d skipped so far.",
            f"gradients of {names} overflowed at loss scale {report.loss_scale:g}{why_not}"
            if report.overflow
            else cause,
            report.next_loss_scale,
            report.skipped_total,
        )
        if self._on_skip is not None:
            self._on_skip(report)
        if self.skips.in_vain >= self._max_consecutive_skips:
            raise FloatingPointError(
                f"{self.skips.in_vain} steps in a row overflowed, the last at loss scale "
                f"{report.loss_scale:g}, {limit}, in the gradients of {names}: "
                f"{cause}; amp.diagnose(net, loss_fn, data, label) finds the block."
            )

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

    def _adopt_masters(self) -> None:
        """Make the parameters' own masters those of the states that the update changes."""
        for device, updater in enumerate(self._updaters):
            for index, param in enumerate(self.parameters):
                if param.grad_req == "null" or np.dtype(param.dtype) != np.float16:
                    continue
                weight = param.list_data()[device]
                if weight._fresh_grad:
                    masters.adopt(param, weight, updater, index)

    def refresh_masters(self) -> None:
        """Update the masters of weights that were written since the last step.

        Where a master rounds to the weight it keeps all its bits; elsewhere it is set to the
        weight. `step` calls it.
        """
        guards.check_own_weights(self.parameters)
        for _, weight, master in self.masters():
            masters.sync_master(weight, master)

    def master_params(self) -> Dict[str, nd.NDArray]:
        """Return the float32 values of all initialized parameters by name, of the first device.

        An array is the master if there is one, or else a float32 parameter's own: copy it to keep
        it. It is of the parameter's kind, `mx.nd` or `mx.np`.
        """
        guards.check_dense(self.parameters, "master_params()")
        self.refresh_masters()
        values = {}
        for param in self.parameters:
            if param._data is None:
                continue
            data, master = param.list_data()[0], masters.master_of(param)
            wait_until_unused(data)  # the caller may read it on the host
            if master is not None:
                values[param.name] = master
            elif np.dtype(data.dtype) == np.float16:
                values[param.name] = cast(data, "float32")
            else:
                values[param.name] = data
        return values

    # ------------------------------------------------------------------ states

    def state_dict(self) -> dict:
        """Return what a resumed run needs besides the parameters: see `states.collect`."""
        from gluon_amp.trainer import states

        guards.check_dense(self.parameters, "saved states")
        self.ready()
        return states.collect(self)

    def load_state_dict(self, saved: dict) -> None:
        """Restore what `state_dict` returned: see `gluon_amp.trainer.states.restore`."""
        from gluon_amp.trainer import states

        guards.check_dense(self.parameters, "saved states")
        self.ready()
        states.restore(self, saved)
        self._writes.clear()
        self._end_passes()

    def save_states(self, fname: str) -> None:
        """Write `state_dict` to a file, which is either the old or the complete new one."""
        from gluon_amp.trainer import state_files

        state_files.write(fname, self.state_dict())

    def load_states(self, fname: str) -> None:
        """Restore the states from a file of `save_states`, with loss scale and counters.

        Files of stock MXNet's `gluon.Trainer` and `Module` are read too, if they are of the same
        optimizer; the parameters' dtypes may differ. The loss scale and the skip counters then stay
        this trainer's own. A learning rate scheduler of the saved class is restored with its
        settings. Nothing in a file is executed.

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
        from gluon_amp.trainer import state_files

        guards.check_dense(self.parameters, "saved states")
        self.ready()
        self.load_state_dict(state_files.read(fname, self))


def check_scaled(trainer: object, caller: str) -> None:
    """Raise `TypeError` for a trainer without the methods of `Trainer`."""
    if not isinstance(trainer, ScaledSteps):
        raise TypeError(
            f"{caller}() got a {type(trainer).__name__} without a loss scale: build an "
            "amp.Trainer, or call amp.init_trainer(trainer) first."
        )


def cause_of_overflow(parameters: List[gluon.Parameter], overflowed: Pass) -> Tuple[str, bool]:
    """Return what is known about an overflow without another pass through the network.

    And whether a lower loss scale may help.
    """
    values = {p.name: p.list_data()[0] for p in parameters if p._data is not None}
    infinite = [name for name, fits in zip(values, finite(values.values())) if not fits]
    if infinite:
        return f"the parameter {infinite[0]} is not finite itself, so load a finite one", False
    # The loss alone is not enough: a ReLU turns NaN into 0.
    written = chain.from_iterable(overflowed.written)
    after = [one.after for one in written if one.after is not None]
    if not all_finite([*overflowed.losses, *after]):
        return (
            "the forward pass is not finite already, so look for infinite data and for overflow"
            " in the network",
            False,
        )
    return "the forward pass looks finite, so it is probably its gradient that overflows", True
