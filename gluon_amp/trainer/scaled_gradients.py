"""Scaled gradients: backward passes with one scale, and their reduction."""

import contextlib
import logging
import math
from typing import (
    Any,
    Callable,
    Collection,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

from gluon_amp.base.array_kinds import set_to_zero, zeros_like
from gluon_amp.base.host import host_view, on_cpu
from gluon_amp.base.parameter_server import check_alike, connected
from gluon_amp.casting import snapshots, statistics
from gluon_amp.casting.stale_trainer import DtypesAtBuild
from gluon_amp.graph import tape
from gluon_amp.optimizer.arrays import (
    all_finite,
    finite,
    flatten,
    head_gradients,
    multiply,
    restored,
)
from gluon_amp.trainer import first_scale, guards, reduction
from gluon_amp.trainer.contrib_amp_scaler import ContribAmpScaler
from gluon_amp.trainer.loss_scale import (
    DynamicLossScale,
    FiniteCheck,
    LossScale,
    NoLossScale,
    resolve,
    whole_number,
)
from gluon_amp.trainer.passes import Gradients, Pass, Passes, clear_fresh, mark_fresh
from gluon_amp.trainer.report import Skips, StepReport
from gluon_amp.trainer.sums import GradientSums

import mxnet as mx
from mxnet import autograd, gluon, nd

logger = logging.getLogger("gluon_amp")


class _ByDtype:
    def __repr__(self):
        return "by dtype"


BY_DTYPE = _ByDtype()

# Why a pass was not repeated: see `StepReport.not_repeated`
NOT_KEPT = "its graph was not kept, as in amp.scale_loss or in a pass for each device"
BESIDE_OTHERS = "another trainer's gradients with the same loss scale waited for their step"

# What `Trainer` accepts: see there.
LossScaleOption = Union[float, str, LossScale, _ByDtype, None]
# A loss, or one for each device
Losses = Union[nd.NDArray, Sequence[Any]]


class ScaledGradients:
    """The part of a scaled `gluon.Trainer` that computes gradients and reduces them."""

    skips: Skips
    keeps_losses = False  # those of the backward passes of a step
    # Called before each reduction and update, skipped ones included, when all backward passes ran
    step_listeners: List[Callable[[], None]]
    # Called with the report of each step, skipped ones included, when it is over
    report_listeners: List[Callable[[StepReport], None]]

    def _start_gradients(
        self, dtypes: DtypesAtBuild, loss_scale, check_finite, max_consecutive_skips
    ) -> None:
        """Check the arguments and set all attributes; nothing is changed when this raises."""
        self._dtypes = dtypes
        self._scale_by_dtype = loss_scale is BY_DTYPE
        if self._scale_by_dtype:
            loss_scale = "dynamic" if dtypes.any_float16() else None
        if self.keeps_losses and check_finite is None:
            check_finite = True  # so that statistics are kept, which a veto restores
        self._loss_scale = resolve(loss_scale, check_finite)
        unscaled = isinstance(self._loss_scale, (NoLossScale, FiniteCheck))
        guards.check_lbsgd(self._optimizer, has_scale=not unscaled)
        # Whether the losses multiply their head gradients, which only a scale needs
        self._heads_checked = isinstance(self._loss_scale, FiniteCheck)
        self._max_consecutive_skips = whole_number(
            "max_consecutive_skips", max_consecutive_skips, 1
        )
        if self.scaling:
            guards.check_compression(self._compression_params)
            guards.check_dense(self.parameters, "an overflow check")
        self.skips = Skips()
        self.step_listeners = []
        self.report_listeners = []
        statistics.watch(self.parameters)
        if self.scaling:
            statistics.start_keeping()
        self._sums = GradientSums()
        self._keys_of_sums: Set[int] = set()  # those that the kvstore has
        self._has_summed = False
        self._passes = Passes(self._loss_scale)
        self._end_passes()

    # ------------------------------------------------------------------ public state
    #
    # `loss_scale` is for users. The others are for the rest of this package and for code that
    # extends a trainer.

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale object; its `.scale` is what the next step's backward passes use."""
        return self._loss_scale

    @property
    def _amp_loss_scaler(self) -> ContribAmpScaler:
        return ContribAmpScaler(self._loss_scale)

    @property
    def scaling(self) -> bool:
        """Whether gradients are checked, and steps can be skipped, with or without a scale."""
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
        self._begin_kind(accumulate)
        contexts = {one.context for one in losses}
        weights = [w for _, w in self._weights() if w.context in contexts] if accumulate else ()
        earlier = clear_fresh(weights)
        if self.scaling:
            self._backward_scaled(losses, retain_graph, train_mode, weights)
        else:
            autograd.backward(losses, retain_graph=retain_graph, train_mode=train_mode)
            if accumulate:
                self._add_to_sums(weights, 1.0)
        mark_fresh(earlier)
        if self.keeps_losses:
            self._losses += [one.detach() for one in losses]

    def _begin_kind(self, accumulate: bool) -> None:
        """Raise an error of the caller if a backward pass cannot be added to those of its step."""
        if self._sums.in_use:
            raise RuntimeError(
                "A backward pass follows clip_global_norm, allreduce_grads or unscale, which use "
                "the sums of backward(accumulate=True): call step first."
            )
        if self._accumulates not in (None, accumulate):
            raise RuntimeError(
                "The backward passes of one step have to be all with accumulate=True or all "
                "without: call step between them."
            )
        if accumulate:
            guards.check_dense(self.parameters, "backward(accumulate=True)")
            guards.check_overwritten(self.trained())
            self._has_summed = True
        else:
            self._sums.free()
            dynamic = isinstance(self._loss_scale, DynamicLossScale)
            if self._has_summed and dynamic and reduction.crosses_workers(self):
                raise RuntimeError(
                    "With several workers, a training with backward(accumulate=True) has to use it "
                    "in each step: the loss scales of its workers may differ."
                )
        self._accumulates = accumulate

    def _backward_scaled(self, losses, retain_graph, train_mode, summed) -> None:
        """Run a scaled pass; `summed` are weights whose gradients are added to the sums."""

        def run(scale: float, retain_graph: bool = True) -> None:
            heads = head_gradients(losses, scale)
            autograd.backward(losses, heads, retain_graph=retain_graph, train_mode=train_mode)

        # A SyncBatchNorm waits for all devices, so a pass on some of them may not be waited for.
        on_all_devices = {one.context for one in losses}.issuperset(self.contexts)
        if (self._loss_scale.searching or not self._heads_checked) and on_all_devices:
            with self.kept_pass(
                losses, run, retain_graph, check_heads=True, summed=summed
            ) as scale:
                run(scale)
        else:
            with self.scaled_pass(losses, summed) as scale:
                run(scale, retain_graph)

    @contextlib.contextmanager
    def scaled_pass(
        self, losses: Sequence[nd.NDArray] = (), summed: Sequence[nd.NDArray] = ()
    ) -> Iterator[float]:
        """Yield the scale for a backward pass, and record what the pass writes."""
        made = self._passes.begin(afresh=bool(summed))
        written = statistics.begin_backward(tape.read(losses), self.statistics)
        yield made.scale
        self._end_pass(written, losses, summed, made.scale, not_repeated=NOT_KEPT)

    @contextlib.contextmanager
    def kept_pass(
        self,
        losses: Sequence[nd.NDArray],
        run: Callable[[float], None],
        retain_graph: bool = False,
        check_heads: bool = False,
        summed: Sequence[nd.NDArray] = (),
    ) -> Iterator[float]:
        """Do the same for a pass that `run` repeats at a lower scale, if it overflows.

        `run` keeps the graph of the pass, which is freed here.
        """
        made = self._passes.begin(afresh=bool(summed))
        recorded = tape.read(losses)
        written = statistics.begin_backward(recorded, self.statistics)
        fitting = retried_at = None
        weights = [array for _, array in self._weights()]
        options = retain_graph, made.searching
        with first_scale.replays(losses, recorded, weights, run, *options) as kept:
            yield made.scale
            # Wait for the pass first: on a CPU it writes statistics without MXNet's engine knowing.
            fits = all_finite([*self.gradients(), *kept.written])
            # Users may call backward() while recording.
            with autograd.pause(), restored(array for one in written for array in one.arrays):
                if check_heads and not self._heads_checked:
                    first_scale.check_heads(kept)
                    self._heads_checked = True
                if made.searching:
                    # Only a lower scale than that of the earlier passes is of interest.
                    high = min(one for one in (made.scale, made.fitting) if one is not None)
                    low = self._loss_scale.min_scale
                    fitting = made.scale if fits else kept.search(low, high, made.scale)
                why_not = kept.why_not or (BESIDE_OTHERS if made.beside_others else "")
                if fitting and not fits and not why_not:
                    retried_at = self._repeat(kept, made, fitting)
        scale = made.scale if retried_at is None else retried_at
        why_not = "" if fits else why_not
        self._end_pass(written, losses, summed, scale, fitting, retried_at, why_not)

    def _end_pass(
        self, written, losses, summed, scale, fitting=None, retried_at=None, not_repeated=""
    ) -> None:
        """Record a pass; if it is to be summed, add its gradients with this scale, or undo it."""
        kept = not summed or self._add_to_sums(summed, scale)
        if not kept:
            snapshots.undo((snapshots.ended(written),))
            written = ()
        self._passes.extend(
            written, losses, fitting, retried_at=retried_at, not_repeated=not_repeated
        )
        if not kept:
            self._passes.report(False, fitting)

    def _add_to_sums(self, weights: Collection[nd.NDArray], scale: float) -> bool:
        """Add gradients of a pass to the sums; return False, and drop it, if not all are finite."""
        reached = [weight for weight in weights if weight._fresh_grad]
        grads = [weight.grad for weight in reached]
        if not self.scaling or all_finite(grads):
            self._sums.add(reached, scale)
            return True
        self._sums.drop(weight for weight, fits in zip(reached, finite(grads)) if not fits)
        set_to_zero(grads)
        logger.info("Backward pass left out: gradients overflowed at loss scale %g.", scale)
        return False

    def use_sums(self) -> None:
        """Put the sums of `backward(accumulate=True)` in the place of the gradients for a step."""
        if self._sums.passes and not self._sums.in_use:
            self._sums.put(self.trained())
            self.mark_gradients(divisor=self.current_pass().scale)

    def _repeat(self, kept: first_scale.KeptPass, made: Pass, fitting: float) -> Optional[float]:
        """Repeat an overflowed pass where it fits, with a margin; return its scale, if it can be.

        The gradients of earlier passes of the step are brought to the new scale. With the margin, a
        sum of finite gradients is finite.
        """
        self._loss_scale.lower_to(fitting)
        lower = self._loss_scale.checked_scale()
        if lower >= made.scale:
            return None
        factor = lower / made.scale if made.losses else 1.0  # what a user adds to has no scale
        kept.restore()
        if factor != 1:
            multiply(self.gradients(), factor)  # those that the pass adds to are set by `repeat`
        kept.repeat(lower, factor)
        logger.info(
            "Backward pass repeated: gradients overflowed at loss scale %g and fit at %g.",
            made.scale,
            lower,
        )
        return lower

    def begin_unended_pass(self, losses: Sequence[nd.NDArray]) -> float:
        """Return the scale for a backward pass whose end will not be known.

        A skip then restores all that was written to running statistics since.
        """
        guards.check_own_weights(self.parameters)
        self._begin_kind(accumulate=False)
        made = self._passes.begin()
        written = statistics.begin_backward(tape.read(losses), self.statistics)
        self._passes.extend(written, losses, ended=False, not_repeated=NOT_KEPT)
        return made.scale

    def _end_passes(self) -> None:
        """Forget passes and gradients after a step."""
        self._passes.end()
        self._gradients = Gradients()
        self._sums.end()
        self._accumulates: Optional[bool] = None  # in the passes of this step
        self._losses: List[nd.NDArray] = []
        statistics.forget()

    def current_pass(self) -> Pass:
        """Return the passes since the last step, of this trainer or one that shares its scale.

        Raise `RuntimeError` if there are none.
        """
        guards.check_own_weights(self.parameters)
        if not self.scaling:
            return Pass(scale=1.0)
        current = self._passes.current()
        if current is None:
            raise RuntimeError(
                "There is no scaled backward pass to step on: call trainer.backward(loss) in place "
                "of loss.backward(), once or more before each step, so that the gradients carry the"
                " loss scale (in an Estimator, batch_processor=amp.BatchProcessor() does)."
            )
        return current

    # ------------------------------------------------------------------ gradients

    def gradients(self) -> Iterator[nd.NDArray]:
        """Yield the gradients of all initialized parameters on all devices."""
        return (grad for param in self.trained() for grad in param.list_grad())

    def used_scale(self) -> float:
        """Return the factor that the gradients carry: the loss scale over their divisor.

        Raise `RuntimeError` as `current_pass` and `current_gradients` do.
        """
        return self.current_pass().scale / self.current_gradients().divisor

    def current_gradients(self) -> Gradients:
        """Return what was done to the gradients since the last backward pass.

        Raise `RuntimeError` if that pass added to gradients that were reduced or unscaled before,
        or wrote only some of them.
        """
        done = self._gradients
        if not done.fresh:
            return done
        # The marks were cleared when the gradients were reduced, measured or unscaled, so those
        # that are set now come from later passes.
        written = {id(one): param.grad_req for param, one in self._weights() if one._fresh_grad}
        if written:
            overwritten = all(written.get(key) == "write" for key in done.fresh)
            if not overwritten and (done.reduced or done.divisor != 1):
                raise RuntimeError(
                    "A backward pass wrote into gradients that were reduced or unscaled already, "
                    "which mixes two units: call clip_global_norm, allreduce_grads and unscale "
                    "after the last backward pass of a step."
                )
            mark_fresh(done.fresh.values())
            self._gradients = Gradients()
        return self._gradients

    def mark_gradients(self, **changes: Any) -> None:
        """Record what was done to the gradients, in fields of `Gradients`."""
        self._gradients = self._gradients.after((w for _, w in self._weights()), **changes)

    def allreduce_grads(self) -> None:
        """Reduce the gradients over devices and workers; then call `update`, not `step`.

        The results are sums that carry the loss scale. `step` and `clip_global_norm`, whose results
        nobody reads, divide the summands first, so that no sum overflows where each of them fits.
        Gradients that are reduced already stay as they are.
        """
        guards.check_dense(self.parameters, "allreduce_grads()")
        self.use_sums()
        if not self.current_gradients().reduced:
            self._reduce()

    def _reduce_once(self) -> None:
        """Reduce the gradients, unless they are, and divide them first (`reduction.divisor`).

        The update multiplies by the divisor.
        """
        self.use_sums()
        if self.current_gradients().reduced:
            return
        self.ready()
        divisor = reduction.divisor(self, self.gradients()) if self.scaling else 1.0
        if divisor != 1:
            others = set(self.trained()).difference(reduction.added_here(self))
            multiply((grad for param in others for grad in param.list_grad()), 1 / divisor)
        self._reduce(divisor)

    def _reduce(self, divisor: float = 1.0) -> None:
        self.ready()
        current = self.current_pass()
        if self._sums.in_use:
            self._exchange_sums()
        else:
            if current.searching and reduction.crosses_workers(self):
                self._agree_on_scale(current)
            reduction.allreduce(self, divisor)
        if reduction.exchanges(self):
            divisor *= self._gradients.divisor
            self.mark_gradients(reduced=True, divisor=divisor)

    def _exchange_sums(self) -> None:
        """Reduce sums as `_allreduce_grads` reduces gradients, whose dtype may be another."""
        if self._kvstore is None or reduction.has_own(self):
            self._allreduce_grads()
            return
        for index, param in enumerate(self.parameters):
            if param.grad_req != "null":
                key, sums = len(self.parameters) + index, param.list_grad()
                if key not in self._keys_of_sums:
                    self._kvstore.broadcast(key, zeros_like(sums[0]), list(map(zeros_like, sums)))
                    self._keys_of_sums.add(key)
                self._kvstore.pushpull(key, sums, priority=-index)

    def _agree_on_scale(self, current: Pass) -> None:
        """Bring the gradients of all workers to one scale: each may have repeated its own pass."""
        with restored(self.gradients()):
            scale = self._smallest_of_workers(current.scale, current.began)
        if scale is not None and scale < current.scale:
            multiply(self.gradients(), scale / current.scale)
            self._passes.rescale(scale)
        if scale is not None and scale < current.began:
            self._loss_scale.scale = scale

    def _smallest_of_workers(self, own: float, high: float) -> Optional[float]:
        """Return the smallest of all workers' scales up to `high`, or None if one of them is 0.

        Gradients are overwritten: workers can exchange nothing else.
        """
        exchanged = [p.list_grad() for p in self.trained() if p.list_grad()[0].stype == "default"]
        if not reduction.crosses_workers(self) or not exchanged:
            return own or None

        def fits_everywhere(candidate: float) -> bool:
            for grads in exchanged:
                for grad in grads:
                    grad[:] = 0 if candidate <= own else math.inf
            self._allreduce_grads()
            return all_finite(exchanged[0])

        if fits_everywhere(high):
            return high
        return first_scale.largest_power(self._loss_scale.min_scale, high / 2, fits_everywhere)

    def trained(self) -> List[gluon.Parameter]:
        """Return the initialized parameters that have gradients."""
        return [p for p in self.parameters if p.grad_req != "null" and p._data is not None]

    def _weights(self) -> List[Tuple[gluon.Parameter, nd.NDArray]]:
        """Return the trained parameters, each with its array on each device."""
        return [(param, array) for param in self.trained() for array in param.list_data()]

    def _used_grads(self) -> List[Tuple[str, list]]:
        """Return names of parameters, each with those of its gradients that this step uses.

        A reduction adds stale gradients to fresh ones, so both count there. Where it crosses
        workers, this worker cannot know which are fresh on others. All count then, so that all
        workers decide alike.
        """
        across_workers = reduction.crosses_workers(self)
        used = []
        for param in self.trained():
            pairs = list(zip(param.list_data(), param.list_grad()))
            fresh = [grad for data, grad in pairs if self._gradients.is_fresh(data)]
            reduced = across_workers or (self._kvstore is not None and fresh)
            used.append((param.name, [grad for _, grad in pairs] if reduced else fresh))
        return used

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
            self._passes.add_write(written)

    def _init_kvstore(self):
        config = self._kvstore_params
        config["kvstore"] = connected(config["kvstore"])
        super()._init_kvstore()
        if not self._update_on_kvstore:  # else servers would update what is exchanged
            scale = self._loss_scale
            fixed = None if isinstance(scale, DynamicLossScale) else scale.scale
            networks = [(p.shape, p.grad_req, p._data is None) for p in self.parameters]
            facts = {
                "the dtypes of their parameters": self._dtypes.names,
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
