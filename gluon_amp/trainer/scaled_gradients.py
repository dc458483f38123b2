"""Scaled gradients: backward passes with one scale, their window, and their reduction."""

import contextlib
import math
import threading
from dataclasses import replace
from typing import Callable, Iterator, List, Optional, Tuple

import numpy as np

from gluon_amp.casting import statistics
from gluon_amp.casting.stale_trainer import DtypesAtBuild
from gluon_amp.optimizer.arrays import all_finite, flatten, head_gradients, multiply, restored
from gluon_amp.trainer import first_scale, guards, snapshot
from gluon_amp.trainer.contrib_amp_scaler import ContribAmpAttributes
from gluon_amp.trainer.loss_scale import FiniteCheck, LossScale, NoLossScale, resolve, whole_number
from gluon_amp.trainer.report import Skips
from gluon_amp.trainer.window import Window, clear_fresh, mark_fresh

import mxnet as mx
from mxnet import autograd, gluon, nd


class _ByDtype:
    def __repr__(self):
        return "by dtype"


BY_DTYPE = _ByDtype()


class ScaledGradients(ContribAmpAttributes):
    """The part of a scaled `gluon.Trainer` that computes gradients and reduces them."""

    skips: Skips
    # Called before each reduction and update, skipped ones included, when all backward passes ran
    step_listeners: List[Callable[[], None]]

    def _start_gradients(
        self, dtypes: DtypesAtBuild, loss_scale, check_finite, max_consecutive_skips
    ) -> None:
        """Check the arguments and set all attributes; nothing is changed when this raises."""
        self._dtypes = dtypes
        self._scale_by_dtype = loss_scale is BY_DTYPE
        if self._scale_by_dtype:
            loss_scale = "dynamic" if dtypes.any_float16() else None
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
        self._statistics = [p for p in self.parameters if statistics.is_statistic(p)]
        statistics.watch(self.parameters)
        if self.scaling:
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

        The first pass is replayed with head gradients of zero, to find a loss that ignores them.
        While the scale is searching (see `DynamicLossScale`), an overflowing pass is replayed at
        lower scales before this method returns, about seven times.

        Parameters
        ----------
        loss : NDArray, or list of them, nested or not, on one or several devices
            float32 or float64, of any shape, of `mx.nd` or `mx.np`.
        retain_graph, train_mode : bool
            As in `mxnet.autograd.backward`.

        Raises
        ------
        TypeError
            For a loss in another dtype: cast the network's output to float32 before the loss.
        ValueError
            For a loss that ignores its head gradient, which no loss scale can reach, as those made
            of `SoftmaxOutput` or `MakeLoss`.
        """
        losses = list(flatten(loss))
        if not losses:
            raise ValueError("backward() got no loss: pass an NDArray or a list of NDArrays.")
        if not self.scaling:
            autograd.backward(losses, retain_graph=retain_graph, train_mode=train_mode)
            return
        guards.check_losses(losses)
        # A SyncBatchNorm waits for all devices, so a pass on some of them may not be waited for.
        on_all_devices = {one.context for one in losses}.issuperset(self.contexts)
        if (self._loss_scale.searching or not self._heads_checked) and on_all_devices:
            weights = (array for param in self._trained() for array in param.list_data())
            kept = first_scale.replays(losses, weights, retain_graph, train_mode)
            retain_graph = True
        else:
            kept = contextlib.nullcontext()
        with kept as fits, self.scaled_pass(losses, fits, check_heads=True) as scale:
            heads = head_gradients(losses, scale)
            autograd.backward(losses, heads, retain_graph=retain_graph, train_mode=train_mode)

    @contextlib.contextmanager
    def scaled_pass(
        self, losses=(), fits: Optional[first_scale.Fits] = None, check_heads: bool = False
    ) -> Iterator[float]:
        """Yield the window's scale for a backward pass, and record what the pass writes.

        `fits` replays the pass: while the loss scale is searching, and to check its head gradients.
        """
        scale = self._open_window()
        written = snapshot.begin_backward(self.statistics)
        yield scale
        fitting = None
        if fits is not None:
            # Wait for the pass first: on a CPU it writes statistics without MXNet's engine knowing.
            # Users may call backward() while recording.
            finite = all_finite(self.gradients())
            with autograd.pause(), restored(array for one in written for array in one.arrays):
                if check_heads and not self._heads_checked:
                    first_scale.check_heads(fits)
                    self._heads_checked = True
                if self._loss_scale.searching:
                    fitting = scale if finite else self._search(fits, scale)
        self._add_pass(written, losses, fitting)

    def _search(self, fits: first_scale.Fits, scale: float) -> Optional[float]:
        """Return the largest scale at which the pass fits, as `first_scale.search` does."""
        # Only a lower scale than that of the window's earlier passes is of interest.
        high = scale if self._window.fitting is None else self._window.fitting
        return first_scale.search(self._loss_scale.min_scale, high, fits) if high else high

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
                self._window = replace(self._window, scale=self._loss_scale.checked_scale())
            self._loss_scale.begin_backward(self._window.scale)
            return self._window.scale

    def _add_pass(self, written: snapshot.Pass, losses, fitting=None, ended=True) -> None:
        with self._window_lock:  # so that passes are added in the order in which they ended
            window = self._window.with_pass(snapshot.ended(written) if ended else written)
            window = window.with_fitting(fitting)
            self._window = replace(window, losses=tuple(one.detach() for one in losses))
            self._loss_scale.backward_passes = window.passes

    def _begin_window(self) -> None:
        """Replace the window after a step."""
        self._window = Window(shared_backwards=self._loss_scale.backwards)
        snapshot.end_step(undoes=self.scaling)

    def used_scale(self) -> float:
        """Return the factor of the gradients: the loss scale over the divisor of the reduction.

        Raise `RuntimeError` if no backward pass of this trainer, or of one that shares its scale,
        came before.
        """
        if self._window.scale is not None:
            return self._window.scale / self._window.predivided
        if not self.scaling:
            return 1.0
        if self._loss_scale.backwards > self._window.shared_backwards:
            return self._loss_scale.backward_scale / self._window.predivided
        raise RuntimeError(
            "There is no scaled backward pass to step on: call trainer.backward(loss) in place of "
            "loss.backward(), once or more before each step, so that the gradients carry the loss "
            "scale (in an Estimator, batch_processor=amp.BatchProcessor() does)."
        )

    # ------------------------------------------------------------------ gradients

    def gradients(self) -> Iterator[nd.NDArray]:
        """Yield the gradients of all initialized parameters on all devices."""
        return (grad for param in self._trained() for grad in param.list_grad())

    def current_window(self) -> Window:
        """Return the window, without values that a later backward pass made obsolete.

        Raise `RuntimeError` if that pass added to gradients that were reduced or unscaled before,
        or wrote only some of them.
        """
        window = self._window
        if not window.fresh:
            return window
        weights = [(param, array) for param in self._trained() for array in param.list_data()]
        # The marks were cleared when the window's gradients were marked as reduced or unscaled, so
        # those that are set now come from later passes.
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
        """Record in fields of the window what was done to the gradients, to detect later passes."""
        cleared = clear_fresh(array for param in self._trained() for array in param.list_data())
        fresh = {**self._window.fresh, **{id(array): array for array in cleared}}
        self._window = replace(self._window, fresh=fresh, **changes)

    def allreduce_grads(self):
        """Reduce the gradients over devices and workers; then call `update`, not `step`.

        The results are sums that carry the loss scale. `step` and `clip_global_norm`, whose results
        nobody reads, divide the summands first, so that no sum overflows where each of them fits.
        """
        guards.check_dense(self.parameters, "allreduce_grads()")
        self.current_window()
        self._reduce()
        self.mark_gradients(reduced=True)

    def _reduce(self) -> None:
        self.ready()
        self._allreduce_grads()

    def _reduce_predivided(self) -> None:
        """Reduce the gradients, divided by a power of two at least as high as their number.

        Only sums in float16 need it. It is exact, apart from underflow, and the update multiplies
        by the divisor.
        """
        self.ready()
        divisor = 2.0 ** (self._summands() - 1).bit_length()
        if divisor > 1 and self.scaling:
            gradients = list(self.gradients())
            # Another class may sum float32 gradients in float16, as Horovod does on request.
            float16 = any(np.dtype(grad.dtype) == np.float16 for grad in gradients)
            if float16 or self._reduces_itself():
                multiply(gradients, 1 / divisor)
                self._window = replace(self._window, predivided=divisor)
        self._allreduce_grads()

    def _summands(self) -> int:
        """Return how many gradients of each parameter are added up; 1 if that is not known."""
        if self._reduces_itself():
            # Horovod's trainer adds up one gradient of each process, divided by a factor already.
            workers = getattr(self, "_process_set", None)
            factor = getattr(self, "_gradient_predivide_factor", 1)
            return math.ceil(workers.size() / factor) if workers else 1
        return len(self.contexts) * self._kvstore.num_workers if self._kvstore else 1

    def _reduces(self) -> bool:
        """Return whether gradients are exchanged at all, between devices or workers."""
        return self._kvstore is not None or self._reduces_itself()

    def _reduces_itself(self) -> bool:
        """Return whether another class, such as Horovod's, has a reduction of its own."""
        return type(self)._allreduce_grads is not gluon.Trainer._allreduce_grads

    def _crosses_workers(self) -> bool:
        """Return whether a reduction may exchange gradients with other workers."""
        return self._reduces_itself() or bool(self._kvstore and self._kvstore.num_workers > 1)

    def _trained(self) -> List[gluon.Parameter]:
        return [p for p in self.parameters if p.grad_req != "null" and p._data is not None]

    def _used_grads(self) -> List[Tuple[str, list]]:
        """Return names of parameters, each with those of its gradients that this step uses.

        A reduction adds stale gradients to fresh ones, so both count there. Where it crosses
        workers, this worker cannot know which are fresh on others. All count then, so that all
        workers decide alike.
        """
        across_workers = self._crosses_workers()
        used = []
        for param in self._trained():
            pairs = list(zip(param.list_data(), param.list_grad()))
            fresh = [grad for data, grad in pairs if self._window.is_fresh(data)]
            reduced = across_workers or (self._kvstore is not None and fresh)
            used.append((param.name, [grad for _, grad in pairs] if reduced else fresh))
        return used

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
