"""The methods that `Trainer` and `init_trainer` add to a `gluon.Trainer`."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from gluon_amp import kernels
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.base.host import host_view, on_cpu, wait_until_unused
from gluon_amp.base.parameter_server import check_alike, connected
from gluon_amp.casting import snapshots, statistics
from gluon_amp.casting.stale_trainer import DtypesAtBuild
from gluon_amp.graph import tape
from gluon_amp.lowering.study import delayed_scaling
from gluon_amp.optimizer import ExactFloat, masters
from gluon_amp.optimizer.arrays import (
    all_finite,
    finite,
    flatten,
    head_gradients,
    mean,
    multiply,
)
from gluon_amp.optimizer.base import cast, sync_master
from gluon_amp.trainer import guards
from gluon_amp.trainer.contrib_amp_scaler import ContribAmpScaler
from gluon_amp.trainer.first_scale import NOT_KEPT, FirstScale
from gluon_amp.trainer.gradients import GradientArrays, Named, clear_fresh, mark_fresh
from gluon_amp.trainer.loss_scale import (
    BY_DTYPE,
    LOCK,
    DynamicLossScale,
    FiniteCheck,
    LossScale,
    LossScaleOption,
    NoLossScale,
    resolve,
    whole_number,
)
from gluon_amp.trainer.report import Skips, StepReport, cause_of_overflow, log_skip, too_many_skips
from gluon_amp.trainer.state import Found, Gradients, Pass, Phase, StepState
from gluon_amp.trainer.update import masters_of, update

import mxnet as mx
from mxnet import autograd, gluon, nd

MAX_CONSECUTIVE_SKIPS = 20

# A loss, or one for each device
Losses = Union[nd.NDArray, Sequence[Any]]

# See `Trainer`: whether the update is made.
OnStep = Callable[[gluon.Trainer, StepReport], Optional[bool]]


@dataclass(frozen=True)
class Options:
    """What a trainer was built with."""

    loss_scale: LossScale
    dtypes: DtypesAtBuild
    by_dtype: bool  # whether the dtypes decided on the loss scale
    max_consecutive_skips: int
    on_skip: Optional[Callable[[StepReport], None]]
    on_step: Optional[OnStep]

    def check_dtypes(self) -> None:
        """Raise `RuntimeError` if parameters were cast since."""
        self.dtypes.check(computing=self.by_dtype)

    def vetoes(self, trainer: gluon.Trainer, report: StepReport) -> bool:
        """Return whether `on_step` says that an update is not to be made."""
        answer = None if self.on_step is None else self.on_step(trainer, report)
        return answer is not None and not answer


class ScaledTrainer(gluon.Trainer):
    """A `gluon.Trainer` of any class with a loss scale.

    Attributes
    ----------
    skips : Skips
        How many steps were skipped.
    step_listeners : list of callable
        Called before each reduction and update, skipped ones included, when all backward passes
        ran.
    report_listeners : list of callable
        Called with the report of each step, skipped ones included, when it is over.
    """

    skips: Skips
    step_listeners: List[Callable[[], None]]
    report_listeners: List[Callable[[StepReport], None]]

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
        by_dtype = loss_scale is BY_DTYPE
        if by_dtype:
            loss_scale = "dynamic" if dtypes.any_float16() else None
        if on_step is not None and check_finite is None:
            check_finite = True  # so that statistics are kept, which a veto restores
        scale = resolve(loss_scale, check_finite)
        unscaled = isinstance(scale, (NoLossScale, FiniteCheck))
        guards.check_lbsgd(self._optimizer, has_scale=not unscaled)
        most = whole_number("max_consecutive_skips", max_consecutive_skips, 1)
        if not isinstance(scale, NoLossScale):
            guards.check_compression(self._compression_params)
            guards.check_dense(self.parameters, "an overflow check")
        self._options = Options(scale, dtypes, by_dtype, most, on_skip, on_step)
        self.skips = Skips()
        self.step_listeners = []
        self.report_listeners = []
        statistics.watch(self.parameters)
        if self.scaling:
            statistics.start_keeping()
        self._gradients = GradientArrays(self)
        self._first_scale = FirstScale(scale, self._gradients)
        self._state = StepState()
        self._end_passes()
        # An Updater refuses weights of `mx.np` if the optimizer was built without `npx.set_np()`.
        self._optimizer.allow_np_array = True
        self._writes = masters.WriteDetector()

    # ------------------------------------------------------------------ public state
    #
    # `loss_scale` is for users. The others are for the rest of this package and for code that
    # extends a trainer.

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale object; its `.scale` is what the next step's backward passes use."""
        return self._options.loss_scale

    @property
    def step_state(self) -> StepState:
        """What was done since the last step; frozen."""
        return self._state

    @property
    def _amp_loss_scaler(self) -> ContribAmpScaler:
        return ContribAmpScaler(self.loss_scale)

    @property
    def scaling(self) -> bool:
        """Whether gradients are checked, and steps can be skipped, with or without a scale."""
        return not isinstance(self.loss_scale, NoLossScale)

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
        return [p for p in self.parameters if statistics.is_statistic(p)]

    @property
    def contexts(self) -> List[mx.Context]:
        """The devices; empty without parameters."""
        return self._contexts

    @property
    def updaters(self) -> List[mx.optimizer.Updater]:
        """The holders of the optimizer's states, one for each device."""
        return self._updaters

    # ------------------------------------------------------------------ backward passes

    def backward(
        self,
        loss: Losses,
        retain_graph: bool = False,
        train_mode: bool = True,
        accumulate: bool = False,
    ) -> None:
        """Run the backward pass of one or several losses with scaled gradients.

        The scale enters as the head gradient, so the loss itself keeps its value and cannot
        overflow. All backward passes until the next `step` use one scale, so that gradients which
        accumulate (`grad_req='add'`, or one loss after another) have one unit. Rescaling a float16
        buffer in between could lose bits. Zero such buffers after each step, as in Gluon without a
        scale.

        The first pass is replayed with head gradients of zero, to find a loss that ignores them.
        While the scale is searching (see `DynamicLossScale`), an overflowing pass is replayed at
        lower scales before this method returns, a few times, and repeated at the scale that
        is found. `step` then makes the update, and its report says `retried`. Dropout masks are the
        same. Where a pass cannot be repeated (see `DynamicLossScale`), that step is skipped.

        Parameters
        ----------
        loss : NDArray, or list of them, nested or not, on one or several devices
            float32 or float64, of any shape, of `mx.nd` or `mx.np`.
        retain_graph, train_mode : bool
            As in `mxnet.autograd.backward`.
        accumulate : bool
            Divide the gradients by their scale, and add them to float32 sums that belong to the
            trainer; `step` then updates with the sums of all passes since the last one. A pass
            whose gradients are not finite is left out: what it wrote to running statistics is
            undone, and the scale backs off for the next pass. The update divides by the passes that
            are kept, as if the others had been like these, and is skipped if there are none. So
            `batch_size` is that of all passes. Each pass is waited for, as the scale of the next
            one depends on it. The sums take a float32 array for each parameter, until a pass
            without `accumulate`.

        Raises
        ------
        TypeError
            For a loss in another dtype: cast the network's output to float32 before the loss.
        ValueError
            For a loss that ignores its head gradient, which no loss scale can reach, as those made
            of `SoftmaxOutput` or `MakeLoss`; for a parameter with ``grad_req='add'``, or stored as
            row_sparse, if `accumulate`.
        RuntimeError
            For passes with and without `accumulate` in one step.
        """
        guards.check_own_weights(self.parameters)
        losses = list(flatten(loss))
        if not losses:
            raise ValueError("backward() got no loss: pass an NDArray or a list of NDArrays.")
        guards.check_losses(losses, self.scaling)
        self._begin_backward(accumulate)
        contexts = {one.context for one in losses}
        weights = self._gradients.weights() if accumulate else []
        summed = [weight for weight in weights if weight.context in contexts]
        earlier = clear_fresh(summed)
        if self.scaling:
            # A SyncBatchNorm waits for all devices: a pass on some of them may not be waited for.
            keep = self._first_scale.needs_graph and contexts.issuperset(self.contexts)

            def run(scale: float) -> None:
                heads, keeps = head_gradients(losses, scale), keep or retain_graph
                autograd.backward(losses, heads, retain_graph=keeps, train_mode=train_mode)

            self.run_pass(losses, run, keep, retain_graph, check_heads=True, summed=summed)
        else:
            autograd.backward(losses, retain_graph=retain_graph, train_mode=train_mode)
            if accumulate:
                self._add_to_sums(summed, 1.0)
        mark_fresh(earlier)
        if self._options.on_step is not None:
            with LOCK:
                detached = tuple(one.detach() for one in losses)
                self._state = replace(self._state, losses=self._state.losses + detached)

    def run_pass(
        self,
        losses: Sequence[nd.NDArray],
        run: Callable[[float], None],
        keep: bool,
        retain_graph: bool = False,
        check_heads: bool = False,
        summed: Sequence[nd.NDArray] = (),
    ) -> None:
        """Run a backward pass with the loss scale, and record what it writes.

        `run` runs it at a scale. If it has to `keep` the graph, the pass is repeated at a lower
        scale where it overflows: see `FirstScale.run`. The gradients of `summed` weights are added
        to sums.
        """
        began, recorded, written = self._begin_pass(losses, afresh=bool(summed))
        if keep:
            found = self._first_scale.run(
                run, began, losses, recorded, written, retain_graph, check_heads
            )
        else:
            run(began.scale)
            found = Found(began.scale, not_repeated=NOT_KEPT)
        if summed and not self._add_to_sums(summed, found.scale):
            snapshots.undo((snapshots.ended(written),))
            self._end_pass((), losses, found)
            # Where it fits nowhere, the scale backs off.
            self.loss_scale.update_once(False, found.fitting or None)
        else:
            self._end_pass(written, losses, found)

    def begin_unended_pass(self, losses: Sequence[nd.NDArray]) -> float:
        """Return the scale for a backward pass whose end will not be known.

        A skip then restores all that was written to running statistics since.
        """
        guards.check_own_weights(self.parameters)
        self._begin_backward(accumulate=False)
        began, _, written = self._begin_pass(losses)
        found = Found(began.scale, not_repeated=NOT_KEPT)
        self._end_pass(written, losses, found, is_known=False)
        return began.scale

    def _begin_backward(self, accumulate: bool) -> None:
        """Raise an error of the caller if a backward pass cannot be added to those of its step."""
        scales_may_differ = (
            isinstance(self.loss_scale, DynamicLossScale) and self._gradients.cross_workers
        )
        with LOCK:
            state = self._state.after_backward(accumulate, scales_may_differ)
            if accumulate:
                guards.check_dense(self.parameters, "backward(accumulate=True)")
                guards.check_overwritten(self._gradients.trained())
            else:
                self._gradients.free_sums()
            self._state = state

    def _begin_pass(
        self, losses: Sequence[nd.NDArray], afresh: bool = False
    ) -> Tuple[Pass, Optional[tape.Tape], snapshots.Snapshots]:
        """Return the pass that begins, what autograd recorded of it, and what it writes."""
        with LOCK:
            began = self._state.begin_pass(self.loss_scale, afresh)
            self.loss_scale.begin_pass(began)
            self._set_pass(began)
        recorded = tape.read(losses)
        return began, recorded, statistics.begin_backward(recorded, self.statistics)

    def _end_pass(self, written, losses, found: Found, is_known: bool = True) -> None:
        """Record a pass that has ended, or whose end will not be known."""
        with LOCK:  # so that they are recorded in the order in which they ended
            written = snapshots.ended(written) if is_known else written
            own = self._state.own
            assert own is not None
            self._set_pass(own.with_backward(losses, found).with_written(written))

    def _set_pass(self, own: Pass) -> None:
        """Set this trainer's passes, which belong to the loss scale too."""
        self._state = replace(self._state, own=own)
        self.loss_scale.last_pass = own

    def _add_to_sums(self, weights: Sequence[nd.NDArray], scale: float) -> bool:
        """Add gradients of a pass to the sums; return False if the pass is dropped."""
        kept = self._gradients.add_pass(weights, scale, checked=self.scaling)
        with LOCK:
            self._state = self._state.counting(kept)
        return kept

    def _end_passes(self) -> None:
        """Forget passes and gradients after a step."""
        self._state = self._state.ended(self.loss_scale)
        self._gradients.end_step()
        statistics.forget()

    def current_pass(self) -> Pass:
        """Return the passes since the last step, of this trainer or one that shares its scale.

        Raise `RuntimeError` if there are none.
        """
        guards.check_own_weights(self.parameters)
        return self._state.current_pass(self.loss_scale) if self.scaling else Pass(scale=1.0)

    # ------------------------------------------------------------------ gradients

    def gradients(self) -> Iterator[nd.NDArray]:
        """Yield the gradients of all initialized parameters on all devices."""
        return iter(self._gradients)

    def used_scale(self) -> float:
        """Return the factor that the gradients carry: the loss scale over their divisor.

        Raise `RuntimeError` without a backward pass, or after one that mixed units.
        """
        return self.current_pass().scale / self._latest_gradients().divisor

    def unscale_gradients(self) -> None:
        """Divide the gradients by the scale that they carry, in place.

        Raise `TypeError` for float16 gradients.
        """
        self._use_sums()
        scale = self.used_scale()
        guards.check_unscaled(self._gradients)
        if scale != 1:
            multiply(self._gradients, 1 / scale)
            self._record_changes(divisor=self.current_pass().scale)

    def allreduce_grads(self) -> None:
        """Reduce the gradients over devices and workers; then call `update`, not `step`.

        The results are sums that carry the loss scale. `step` and `clip_global_norm`, whose results
        nobody reads, divide the summands first, so that no sum overflows where each of them fits.
        Gradients that are reduced already stay as they are.
        """
        guards.check_dense(self.parameters, "allreduce_grads()")
        self._reduce(divide=False)

    def _reduce(self, divide: bool) -> None:
        """Reduce the gradients, unless they are; if so, `divide` them first, if they are scaled.

        The update multiplies by the divisor.
        """
        self._use_sums()
        if self._latest_gradients().reduced:
            return
        self.ready()
        divisor = self._gradients.divide() if divide and self.scaling else 1.0
        current = self.current_pass()
        scale = self._first_scale.agree(current)
        if scale != current.scale:
            with LOCK:
                self._set_pass(replace(self.current_pass(), scale=scale))
        self._gradients.reduce(divisor)
        if self._gradients.are_exchanged:
            self._record_changes(reduced=True, divisor=divisor * self._state.gradients.divisor)

    def _use_sums(self) -> None:
        """Put the sums of `backward(accumulate=True)` in the place of the gradients for a step."""
        state = self._state
        if state.summed and state.phase is not Phase.REPLACED:
            scale = self.current_pass().scale
            self._gradients.put_sums(state.kept, state.dropped)
            self._state = replace(self._state, phase=Phase.REPLACED)
            self._record_changes(divisor=scale)

    def _latest_gradients(self) -> Gradients:
        """Return what was done to the gradients since the last pass; raise if it mixed units."""
        seen = self._state.gradients.fresh
        # The marks were cleared when the gradients were reduced, measured or unscaled, so those
        # that are set now come from later passes.
        written = self._gradients.newly_written() if seen else {}
        if written:
            self._state = self._state.after_writes(written)
            mark_fresh(seen.values())
        return self._state.gradients

    def _record_changes(self, **changes: Any) -> None:
        """Record what was done to the gradients, in fields of `Gradients`."""
        fresh = clear_fresh(self._gradients.weights())
        gradients = self._state.gradients.after(fresh, **changes)
        self._state = replace(self._state, gradients=gradients)

    # ------------------------------------------------------------------ clipping

    def clip_global_norm(self, max_norm: float, batch_size: Optional[float] = None) -> float:
        """Clip the gradients of the next step to a norm; call it between `backward` and `step`.

        The norm is that of the true gradients: over all parameters and dtypes, after the reduction
        over devices and workers, without the loss scale. The gradients are reduced, but not
        clipped: the update applies the factor.

        Parameters
        ----------
        max_norm : float
            Above 0; inf only measures.
        batch_size : float
            That of `step`, and required. The gradients are divided by it before they are measured,
            so the norm is that of the gradient of the mean loss. With 1, it is that of
            `gluon.utils.clip_global_norm` in a float32 run.

        Returns
        -------
        float
            The norm before clipping; inf or NaN after an overflow, when `step` will skip.
        """
        guards.check_dense(self.parameters, "clip_global_norm()")
        max_norm = guards.positive("max_norm", max_norm)
        batch_size = guards.batch_size(batch_size, self.rescale)
        self.current_pass()  # raises if there is none
        self._options.check_dtypes()
        self._reduce(divide=True)
        used = self._gradients.used(self._state.gradients.is_fresh)
        norm, finite = self._gradients.measure(used)
        norm *= (abs(self.rescale) / batch_size) / self.used_scale()
        clip_factor = max_norm / norm if max_norm < norm < np.inf else 1.0
        self._record_changes(clip_factor=clip_factor, norm=norm, finite=finite)
        return norm

    # ------------------------------------------------------------------ the step

    def step(
        self, batch_size: Optional[float] = None, ignore_stale_grad: bool = False
    ) -> StepReport:
        """Reduce the gradients and make one update, or skip it if they are not all finite.

        A skipped step is undone: parameters, masters, optimizer state, update counters, the
        learning rate schedule and BatchNorm's running statistics are bit for bit what they were.
        All gradient buffers are zero, also those that accumulate.

        Parameters
        ----------
        batch_size : float
            Required. Gradients are divided by it; 1 if the loss is a mean already. An array of one
            element is read, which waits for it.
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
        self._reduce(divide=True)
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
        self._options.check_dtypes()
        for listener in tuple(self.step_listeners):
            listener()
        super().step(batch_size, ignore_stale_grad)
        return self._end_step(StepReport(applied=True, loss_scale=1.0, next_loss_scale=1.0))

    def _begin_step(self, ignore_stale_grad) -> None:
        """Raise errors of the caller before anything is reduced, then call the listeners."""
        self.current_pass()  # raises if there is none
        self._options.check_dtypes()
        self._use_sums()
        self._latest_gradients()
        if not ignore_stale_grad:
            # gluon.Trainer raises this in the middle of the update, after it cleared some marks.
            self._state.check_written(self._gradients.trained())
        for listener in tuple(self.step_listeners):
            listener()

    def _finish_step(self, batch_size, ignore_stale_grad) -> StepReport:
        options, scale = self._options, self.loss_scale
        if options.on_step is not None and self._state.gradients.norm is None:
            self.clip_global_norm(math.inf, batch_size)
        stepped_on, state = self.current_pass(), self._state
        used = self._gradients.used(state.gradients.is_fresh) if self.scaling else []
        grads = [grad for _, arrays in used for grad in arrays]
        report = StepReport(
            applied=state.gradients.still_finite(grads) or all_finite(grads),
            loss_scale=stepped_on.scale,
            next_loss_scale=scale.scale,
            grad_norm=state.gradients.norm,
            skipped_total=self.skips.total,
            retried=stepped_on.retried,
            passes=state.kept if state.summed else 1,
            dropped=state.dropped,
            loss=None if options.on_step is None else mean(state.losses),
        )
        cause = ""
        if not report.applied:
            report, cause = self._skip_overflow(report, stepped_on, used)
        elif options.vetoes(self, report):
            self._skip()
            self.skips = self.skips.with_one_more(in_vain=False)
            report, cause = replace(report, applied=False), "on_step vetoed it"
        else:
            self._apply(batch_size, stepped_on.scale / state.gradients.divisor, ignore_stale_grad)
            if grads:
                scale.update_once(True)
                self.skips = replace(self.skips, in_vain=0)
        report = replace(report, next_loss_scale=scale.scale, skipped_total=self.skips.total)
        delayed_scaling.end_step(self.parameters, report.applied)
        self._end_step(report)
        if not report.applied:
            log_skip(report, cause)
            if options.on_skip is not None:
                options.on_skip(report)
            if self.skips.in_vain >= options.max_consecutive_skips:
                at_floor = stepped_on.at_floor
                limit = scale.limit if at_floor else "and a lower one would not help"
                raise too_many_skips(report, self.skips.in_vain, limit, cause)
        return report

    def _skip_overflow(
        self, report: StepReport, stepped_on: Pass, used: Named
    ) -> Tuple[StepReport, str]:
        """Skip a step of which not all `used` gradients are finite; return its cause too."""
        flags = iter(finite([grad for _, arrays in used for grad in arrays]))
        finite_by_name = [(name, [next(flags) for _ in arrays]) for name, arrays in used]
        overflow = tuple(name for name, flags in finite_by_name if not all(flags))
        fitting = self._first_scale.fitting(stepped_on) if stepped_on.searching else None
        self._skip()
        self.loss_scale.update_once(False, fitting)
        cause, curable = cause_of_overflow(self.parameters, stepped_on)
        fits_nowhere = stepped_on.searching and fitting is None
        in_vain = stepped_on.at_floor or fits_nowhere or not curable
        self.skips = self.skips.with_one_more(in_vain)
        why_not = stepped_on.not_repeated if stepped_on.searching else ""
        return replace(report, overflow=overflow, not_repeated=why_not), cause

    def _skip(self) -> None:
        snapshots.undo(self.current_pass().written)
        self._gradients.set_to_zero()

    def _end_step(self, report: StepReport) -> StepReport:
        self._end_passes()
        for listener in tuple(self.report_listeners):
            listener(report)
        return report

    def _apply(self, batch_size, scale, ignore_stale_grad) -> None:
        gradients = self._state.gradients
        # The division by a power of two comes last, so the digits are the same for every scale.
        factor = self.rescale / batch_size * gradients.clip_factor / scale
        self._check_and_rescale_grad(ExactFloat(factor))
        mark_fresh(gradients.fresh.values())  # gluon.Trainer reads the marks
        sums = self._state.phase is Phase.REPLACED
        update(self, self._writes, None if sums else partial(self._update, ignore_stale_grad))

    # ------------------------------------------------------------------ masters

    def refresh_masters(self) -> None:
        """Update the masters of weights that were written since the last step.

        Where a master rounds to the weight it keeps all its bits; elsewhere it is set to the
        weight. `step` calls it.
        """
        guards.check_own_weights(self.parameters)
        for _, weight, master in masters_of(self):
            sync_master(weight, master)

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

    # ------------------------------------------------------------------ kvstore

    def ready(self) -> None:
        """Create the kvstore, and copy the first device's and worker's parameters to the others.

        `step` calls it. Without new parameters, later calls do nothing.
        """
        guards.check_own_weights(self.parameters)
        if not self.parameters:
            self._kv_initialized = True
        if self._kv_initialized and not self._params_to_init:
            return
        # The statistics are copied too, in the middle of a step, and a skip has to restore them.
        written = snapshots.take(statistics.arrays_of(self.statistics)) if self.scaling else ()
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()
            # Workers pull their first weights from the servers. MXNet may push gradients before
            # these have arrived, and the sum of the gradients would then arrive as the weights.
            for array in statistics.arrays_of(self.parameters):
                array.wait_to_read()
        if written:
            with LOCK:
                current = self._state.find_pass(self.loss_scale)
                if current is not None:
                    own = current.with_written(snapshots.ended(written))
                    self._state = replace(self._state, own=own)

    def _init_kvstore(self):
        config = self._kvstore_params
        config["kvstore"] = connected(config["kvstore"])
        super()._init_kvstore()
        if not self._update_on_kvstore:  # else servers would update what is exchanged
            scale = self.loss_scale
            fixed = None if isinstance(scale, DynamicLossScale) else scale.scale
            networks = [(p.shape, p.grad_req, p._data is None) for p in self.parameters]
            facts = {
                "the dtypes of their parameters": self._options.dtypes.names,
                "their networks": networks,
                "their loss scales": (type(scale), fixed),
            }
            check_alike(self._kvstore, facts)

    def _init_params(self):
        # Inference leaves a weight in oneDNN's layout, which MXNet cannot send. Its engine loses
        # that error, and the first worker that pulls the key aborts the server ("init 4 first").
        dense = (param for param in self._params_to_init if param._stype == "default")
        for array in statistics.arrays_of(dense) if self._kvstore else ():
            if on_cpu(array):
                host_view(array)  # gives it the plain layout
        super()._init_params()

    def _check_contexts(self):
        # Without parameters MXNet's result is None, on which the constructor fails.
        return super()._check_contexts() or []


def check_scaled(trainer: object, caller: str) -> None:
    """Raise `TypeError` for a trainer without the methods of `Trainer`."""
    if not isinstance(trainer, ScaledTrainer):
        raise TypeError(
            f"{caller}() got a {type(trainer).__name__} without a loss scale: build an "
            "amp.Trainer, or call amp.init_trainer(trainer) first."
        )
