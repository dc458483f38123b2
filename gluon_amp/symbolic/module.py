"""`Module`: a `mx.mod.Module` in mixed precision.

A `gluon_amp.Trainer` makes the steps, on Parameters that hold the executors' own arrays: it checks
for overflow, updates the masters or skips, and saves the states.
"""

import logging
import warnings
from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Union

import numpy as np

from gluon_amp import graph
from gluon_amp.base.host import wait_until_unused
from gluon_amp.base.messages import did_you_mean
from gluon_amp.base.mxnet_internals import create_kvstore
from gluon_amp.base.parameter_server import connected
from gluon_amp.casting import statistics
from gluon_amp.graph.runs_once import find_runs_once
from gluon_amp.lowering import check_device
from gluon_amp.lowering.study import delayed_scaling
from gluon_amp.optimizer import create, masters
from gluon_amp.policy import Policy
from gluon_amp.symbolic.graphs import Graphs, Shapes
from gluon_amp.symbolic.loss_head import SCALE
from gluon_amp.symbolic.parameters import ExecutorParameter, Params, checked_values, in_float32
from gluon_amp.trainer import BY_DTYPE, MAX_CONSECUTIVE_SKIPS, StepReport, Trainer
from gluon_amp.trainer.gradients import mark_fresh
from gluon_amp.trainer.loss_scale import LossScale, NoLossScale, resolve

import mxnet as mx
from mxnet import MXNetError, autograd, nd
from mxnet.io import DataBatch, DataDesc

UNIFORM = mx.init.Uniform(0.01)  # the default of `mx.mod.Module.init_params`


class Module(mx.mod.Module):
    """A `mx.mod.Module` in mixed precision.

        module = amp.symbolic.Module(symbol, context=mx.gpu(), policy='float16')
        module.fit(train_iter, optimizer='sgd', optimizer_params={'learning_rate': .1}, num_epoch=9)

    `get_params`, `save_checkpoint` and callbacks see float32 parameters (the masters) and the
    symbol in float32: without the casts of a policy, and with its own casts to float16 as casts to
    float32. So stock MXNet runs the files. On a CPU float16 is emulated.

    With a loss scale each `update` checks the gradients first. If one is not finite, the step is
    skipped: BatchNorm's running statistics and the optimizer's counters are restored, and all
    gradients are set to zero, also those of ``grad_req='add'``. A `grad_scale` in the symbol and a
    `rescale_grad` of the optimizer keep their meaning. So the FAQ's static recipe
    (``grad_scale=128`` and ``rescale_grad=1/128/batch``) works without a loss scale and with one.

    Parameters
    ----------
    symbol, data_names, label_names, logger
        As in `mx.mod.Module`.
    context : Context or list of Context
        By default `mx.cpu()`.
    policy : str or Policy
        As for `gluon_amp.cast`.
    loss_scale : None, number, 'dynamic' or LossScale
        By default dynamic where the policy computes in float16, else None.
    max_consecutive_skips : int
        As in `gluon_amp.Trainer`.
    **options
        `work_load_list`, `fixed_param_names`, `state_names`, `group2ctxs` and `compression_params`
        as in `mx.mod.Module`.

    Attributes
    ----------
    last_report : StepReport or None
        What the last `update` did.

    Raises
    ------
    ValueError
        Unknown policy, a data name that the symbol does not have (near matches are listed), a loss
        scale that is no power of two, a loss head that is pinned to float16 under a loss scale,
        bfloat16 on a GPU, devices of two types or the same twice.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = mx.sym.FullyConnected(mx.sym.var('data'), num_hidden=2, name='fc')
    >>> net = mx.sym.SoftmaxOutput(net, name='softmax')
    >>> module = amp.symbolic.Module(net, policy='float16', loss_scale=128)
    >>> module.fit(mx.io.NDArrayIter(mx.nd.ones((4, 3)), mx.nd.ones((4,)), 2), num_epoch=1)
    >>> module.last_report.applied, module.last_report.loss_scale
    (True, 128.0)
    """

    last_report: Optional[StepReport] = None
    optimizer_initialized: bool
    _symbol: mx.sym.Symbol
    _optimizer: Optional[mx.optimizer.Optimizer]
    _preload_opt_states: Optional[str]

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        data_names: Optional[Sequence[str]] = ("data",),
        label_names: Optional[Sequence[str]] = ("softmax_label",),
        logger: Any = logging,
        context: Optional[Union[mx.Context, Sequence[mx.Context]]] = None,
        *,
        policy: Union[str, Policy] = "float16",
        loss_scale: Any = BY_DTYPE,
        max_consecutive_skips: int = MAX_CONSECUTIVE_SKIPS,
        **options: Any,
    ):
        policy = Policy.parse(policy)
        self._loss_scale = resolve_loss_scale(loss_scale, policy)
        self._max_consecutive_skips = max_consecutive_skips
        context = mx.cpu() if context is None else context
        _check_devices(context, policy)
        other_names = [*(label_names or ()), *(options.get("state_names") or ())]
        self._graphs = Graphs(symbol, policy, data_names or (), other_names, self._scaling)
        super().__init__(
            graph.in_float32(symbol), data_names, label_names, logger, context, **options
        )
        self._trainer: Optional[Trainer] = None
        self._has_new_gradients = False
        # Outputs of the pending forward pass, by device, if its backward pass may be repeated
        self._recorded: Optional[List[List[nd.NDArray]]] = None
        self._input_grad_scale = 1.0  # of the last backward pass

    @classmethod
    def load(
        cls, prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any
    ) -> "Module":
        """Build a module from a checkpoint of stock MXNet or of this class.

        Parameters
        ----------
        prefix, epoch
            As in `mx.mod.Module.load`: reads `prefix-symbol.json` and `prefix-0001.params`.
        load_optimizer_states : bool
            Also read `prefix-0001.states` (optimizer, masters, loss scale) in `init_optimizer`.
        **kwargs
            The constructor's arguments.
        """
        symbol, arg_params, aux_params = mx.model.load_checkpoint(prefix, epoch)
        module = cls(symbol, **kwargs)
        module.preload_params(arg_params, aux_params)
        if load_optimizer_states:
            module.preload_optimizer_states(f"{prefix}-{epoch:04d}.states")
        return module

    def preload_params(self, arg_params: Params, aux_params: Params) -> None:
        """Keep loaded values of all parameters; `bind` copies them to the executors."""
        self._arg_params = in_float32(arg_params)
        self._aux_params = in_float32(aux_params)
        self.params_initialized = True

    def preload_optimizer_states(self, fname: str) -> None:
        """Read a file of `save_optimizer_states` in the next `init_optimizer`."""
        self._preload_opt_states = fname

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale object; its `.scale` is what the next backward pass uses."""
        return self._loss_scale

    @property
    def trainer(self) -> Optional[Trainer]:
        """The trainer that `update` calls; None before `init_optimizer`."""
        return self._trainer

    @property
    def optimizer(self) -> Optional[mx.optimizer.Optimizer]:
        """The optimizer; None before `init_optimizer`."""
        return self._optimizer

    @property
    def executors(self) -> List[mx.executor.Executor]:
        """The executors of the lowered graph, one on each device; empty before `bind`."""
        return [] if self._exec_group is None else self._exec_group.execs

    def collect_params(self) -> Dict[str, mx.gluon.Parameter]:
        """Return parameters and running statistics by name, after `init_optimizer`.

        They are the trainer's. The caller may write to them: the next `get_params` reads them.
        """
        trainer = self._initialized()
        self._params_dirty = True
        return {parameter.name: parameter for parameter in trainer.parameters}

    @property
    def output_shapes(self) -> List[Tuple[str, Tuple[int, ...]]]:
        """Names, as in the symbol, and shapes of the outputs."""
        return [(name, shape) for name, (_, shape) in zip(self.output_names, super().output_shapes)]

    @property
    def _scaling(self) -> bool:
        return not isinstance(self._loss_scale, NoLossScale)

    def _initialized(self) -> Trainer:
        """Return the trainer, after `init_optimizer`."""
        assert self.optimizer_initialized and self._trainer is not None
        return self._trainer

    # ------------------------------------------------------------------ binding

    def bind(
        self,
        data_shapes: Shapes,
        label_shapes: Optional[Shapes] = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Optional["Module"] = None,
        grad_req: Union[str, Sequence[str], Dict[str, str]] = "write",
    ) -> None:
        """As `mx.mod.Module.bind`, of the cast graph, lowered for the device.

        Raises
        ------
        TypeError
            Data of a dtype that the network's operators do not accept, such as float64.
        """
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        if self.binded and self.params_initialized:
            self.get_params()  # from the executors that are replaced
        if isinstance(grad_req, (list, tuple)):
            # By name, as the executors' graph has one argument more than the symbol.
            grad_req = dict(zip(self._symbol.list_arguments(), grad_req))
        symbol, new_params = self._symbol, not self.params_initialized
        shapes = [*data_shapes, *(label_shapes or ())]
        # mx.mod.Module.bind has no argument for the graph that it binds.
        self._symbol = self._graphs.lowered(
            self._context[0].device_type, shapes, for_training, self._frozen(for_training, grad_req)
        )
        try:
            super().bind(
                data_shapes,
                label_shapes,
                for_training,
                inputs_need_grad,
                force_rebind,
                shared_module,
                grad_req,
            )
        finally:
            self._symbol = symbol
        group = self._exec_group
        group.output_names = self._output_names
        group.output_layouts = [
            DataDesc.get_batch_axis(symbol[i].attr("__layout__")) for i in range(group.num_outputs)
        ]
        if shared_module is None:
            if new_params:
                # An initializer writes here; in float32 its values keep all bits for the masters.
                self._arg_params = in_float32(self._arg_params)
            if self._trainer is not None:
                for parameter in self._trainer.parameters:
                    parameter.use_executors(self.executors)
                self._write_masters(self._arg_params)

    def _frozen(self, for_training, grad_req) -> Set[str]:
        """Return the names of the parameters without a gradient."""
        frozen = set(self._fixed_param_names) if for_training else set()
        if isinstance(grad_req, dict):
            frozen.update(name for name, one in grad_req.items() if one == "null")
        return frozen

    # ------------------------------------------------------------------ parameters

    def init_params(
        self,
        initializer: Optional[mx.init.Initializer] = UNIFORM,
        arg_params: Optional[Params] = None,
        aux_params: Optional[Params] = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """As `mx.mod.Module.init_params`; values may be float32, float16 or float64.

        The masters keep all bits of the values, and float16 weights are their roundings.

        Raises
        ------
        TypeError, ValueError
            Values of another dtype, or of another shape than the symbol's. Nothing is changed then.
        """
        if self.params_initialized and not force_init:
            super().init_params()  # warns and returns
            return
        assert self.binded, "call bind before initializing the parameters"
        arg_params = checked_values(arg_params, self._arg_params)
        aux_params = checked_values(aux_params, self._aux_params)
        super().init_params(
            initializer, arg_params, aux_params, allow_missing, force_init, allow_extra
        )
        if self._trainer is not None:
            self._write_masters(self._arg_params)

    def set_params(
        self,
        arg_params: Optional[Params],
        aux_params: Optional[Params],
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """As `mx.mod.Module.set_params`; see `init_params` for the values."""
        if allow_missing and (force_init or not self.params_initialized):
            if self.params_initialized:
                self.get_params()  # so that missing ones keep their values
            arg_params, aux_params = arg_params or {}, aux_params or {}
            unknown = sorted({*arg_params, *aux_params} - {*self._arg_params, *self._aux_params})
            if unknown and not allow_extra:
                raise ValueError(
                    f"The symbol has no parameter {unknown[0]!r}"
                    f"{did_you_mean(unknown[0], self._arg_params)}: "
                    "leave it out, or pass allow_extra=True."
                )
            arg_params = {**self._arg_params, **arg_params}
            aux_params = {**self._aux_params, **aux_params}
        super().set_params(arg_params, aux_params, False, force_init, allow_extra)

    def _sync_params_from_devices(self):
        """Update `_arg_params` and `_aux_params`, the weights from their masters."""
        group, trainer = self._exec_group, self._trainer
        if trainer is None:
            current = dict(zip(group.param_names, (arrays[0] for arrays in group.param_arrays)))
        else:
            current = {parameter.name: parameter.data() for parameter in trainer.parameters}
            wide = {
                parameter.name: masters.master_of(parameter) for parameter in trainer.parameters
            }
            current.update((name, master) for name, master in wide.items() if master is not None)
        for name, held in self._arg_params.items():
            value = current[name].as_in_context(mx.cpu())
            if np.dtype(value.dtype) == np.float16:
                masters.sync_master(value, held)  # it has no master, as nothing updates it
            else:
                value.copyto(held)
        # Every device has its own running statistics. A CPU's backward pass writes them, which
        # MXNet's engine takes for a read. So it does not wait for the pass by itself.
        for name, arrays in zip(group.aux_names, group.aux_arrays):
            for array in arrays:
                wait_until_unused(array)
            mean = sum(array.as_in_context(mx.cpu()) for array in arrays) / len(arrays)
            mean.copyto(self._aux_params[name])
        self._params_dirty = False

    # ------------------------------------------------------------------ the optimizer

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Union[str, mx.optimizer.Optimizer] = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """As `mx.mod.Module.init_optimizer`, but the kvstore never makes the update.

        It would make it before an overflow can be detected. It only reduces gradients.

        Parameters
        ----------
        kvstore, force_init
            As in `mx.mod.Module`.
        optimizer : str or mxnet.optimizer.Optimizer
            As in `gluon_amp.Trainer`.
        optimizer_params : dict, or pairs of names and values
            `rescale_grad` is 1 / (batch size · workers) by default, without the loss scale.

        Raises
        ------
        ValueError
            An unknown optimizer, one without masters for float16 weights, an async kvstore, or
            gradient compression under a loss scale.
        """
        assert self.binded and self.params_initialized
        if self.optimizer_initialized and not force_init:
            self.logger.warning("optimizer already initialized, ignoring...")
            return
        if self._params_dirty:
            self._sync_params_from_devices()
        kvstore, _ = create_kvstore(connected(kvstore), len(self._context), self._arg_params)
        workers = 1 if kvstore is None else kvstore.num_workers
        rescale_grad = 1.0 / (self._exec_group.batch_size * workers)
        names = dict(enumerate(self._param_names))
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            settings = {"rescale_grad": rescale_grad, **dict(optimizer_params)}
            optimizer = create(optimizer, sym=self._symbol, param_idx2name=names, **settings)
        elif optimizer.rescale_grad != rescale_grad:
            warnings.warn(
                f"The optimizer was built with rescale_grad {optimizer.rescale_grad:g}, which is "
                f"not 1 / (batch size * workers) = {rescale_grad:g}; it is kept.",
                stacklevel=2,
            )
        requests = self._exec_group.grad_req  # none of running statistics
        trainer = Trainer(
            [
                ExecutorParameter(name, self.executors, self._context, requests.get(name, "null"))
                for name in [*self._param_names, *self._aux_names]
            ],
            optimizer,
            kvstore=kvstore,
            compression_params=self._compression_params,
            loss_scale=self._loss_scale,
            max_consecutive_skips=self._max_consecutive_skips,
        )
        # Module looks up lr_mult and wd_mult by name, in the symbol's attributes and the optimizer.
        optimizer.param_dict = {}
        optimizer.idx2name = names
        trainer.ready()
        self._use_trainer(trainer)
        self._optimizer, self._kvstore = optimizer, kvstore
        self._update_on_kvstore, self._updater = False, None
        if _is_distributed(kvstore):
            # All workers have the first one's weights now, but not the float32 values of which they
            # are the roundings.
            self._write_masters({one.name: one.data() for one in trainer.parameters})
            self._sync_params_from_devices()
        else:
            self._write_masters(self._arg_params)
        self.optimizer_initialized = True
        if self._preload_opt_states is not None:
            self.load_optimizer_states(self._preload_opt_states)
            self._preload_opt_states = None

    def borrow_optimizer(self, shared_module: "Module") -> None:
        """Share another module's optimizer, masters and loss scale; used in bucketing."""
        super().borrow_optimizer(shared_module)
        assert shared_module.trainer is not None
        self._use_trainer(shared_module.trainer)
        self._loss_scale = shared_module.loss_scale

    def _use_trainer(self, trainer: Trainer) -> None:
        self._trainer = trainer
        delayed_scaling.register(self._graphs.scales, trainer.parameters)

    def _write_masters(self, values):
        """Set the masters of all float16 weights; create them before the first update."""
        for parameter in self._trainer.parameters:
            if np.dtype(parameter.dtype) == np.float16 and parameter.grad_req != "null":
                masters.set_master(parameter, values[parameter.name])

    # ------------------------------------------------------------------ the step

    def forward(self, data_batch: DataBatch, is_train: Optional[bool] = None) -> None:
        """As `mx.mod.Module.forward`."""
        training = self.for_training if is_train is None else is_train
        if training and self._trainer is not None:
            statistics.keep(self._trainer.statistics)
        self._recorded = None
        group, device_type = self._exec_group, self._context[0].device_type
        if (
            training
            and self._trainer is not None
            and self._loss_scale.searching
            and not find_runs_once(graph.to_json(group.symbol), device_type)
        ):
            super().forward(data_batch, is_train=False)  # loads the data
            try:
                self._recorded = [_record(one, group.symbol, group.grad_req) for one in group.execs]
                return
            except MXNetError:  # devices within the graph, or memory for a pass of its own
                pass
        super().forward(data_batch, is_train)

    def backward(self, out_grads: Optional[Union[nd.NDArray, List[nd.NDArray]]] = None) -> None:
        """As `mx.mod.Module.backward`, with the loss scale in all gradients.

        Parameters
        ----------
        out_grads : NDArray or list of NDArray
            Gradients of outputs that are no loss heads, without the scale.
        """
        assert self.binded and self.params_initialized
        trainer = self._trainer
        if isinstance(out_grads, nd.NDArray):
            out_grads = [out_grads]
        run = partial(self._backward_at, out_grads)
        if trainer is None or not self._scaling:
            run(1.0)
        elif self._recorded is not None:
            outputs = [one for outputs in self._recorded for one in outputs]
            trainer.run_pass(outputs, run, keep=True)
        else:
            trainer.run_pass(self._outputs(), run, keep=False)
        self._recorded = None
        self._input_grad_scale = 1.0 if trainer is None else trainer.used_scale()
        self._has_new_gradients = True
        if trainer is not None:
            for parameter in trainer.parameters:
                # A bucket may use a part of the parameters.
                if parameter.grad_req != "null" and parameter.name in self._param_names:
                    mark_fresh(parameter.list_data())

    def _backward_at(self, out_grads: Optional[List[nd.NDArray]], scale: float) -> None:
        for executor in self.executors:
            if SCALE in executor.arg_dict:
                executor.arg_dict[SCALE][:] = scale
        if out_grads is not None and scale != 1.0:
            out_grads = [
                grad if k in self._graphs.heads else grad * scale
                for k, grad in enumerate(out_grads)
            ]
        if self._recorded is None:
            super().backward(out_grads)
            return
        axes = self._exec_group.output_layouts
        for part, outputs in zip(self._exec_group.slices, self._recorded):
            heads = out_grads and [
                _part(grad, axis, part, output)
                for grad, axis, output in zip(out_grads, axes, outputs)
            ]
            autograd.backward(outputs, heads, retain_graph=True)

    def _outputs(self) -> List[nd.NDArray]:
        return [out for executor in self.executors for out in executor.outputs]

    def get_input_grads(self, merge_multi_context: bool = True) -> list:
        """As `mx.mod.Module.get_input_grads`: true gradients, divided by the loss scale."""
        grads = super().get_input_grads(merge_multi_context)
        if self._input_grad_scale == 1.0:
            return grads
        if merge_multi_context:
            return [grad / self._input_grad_scale for grad in grads]
        return [[grad / self._input_grad_scale for grad in on_devices] for on_devices in grads]

    def update(self) -> None:
        """Make one step, or skip it where a gradient is not finite; `last_report` says which.

        Raises
        ------
        RuntimeError
            Without a backward pass since the last `update`.
        FloatingPointError
            After `max_consecutive_skips` overflows in a row at a scale that cannot go lower, or
            where a lower one would not help.
        """
        assert self.binded and self.params_initialized
        trainer = self._initialized()
        if not self._has_new_gradients:
            raise RuntimeError(
                "There are no new gradients to update with: call forward() and backward() before "
                "each update()."
            )
        self._params_dirty = True
        self._has_new_gradients = False
        optimizer = trainer.optimizer
        # A user may set optimizer.rescale_grad between steps. `step` includes the loss scale in it,
        # so the user's value is restored afterwards.
        rescale_grad = trainer.rescale = optimizer.rescale_grad
        try:
            # In bucketing some parameters may have no gradients this time.
            self.last_report = trainer.step(1, ignore_stale_grad=True)
        finally:
            optimizer.rescale_grad = rescale_grad

    # ------------------------------------------------------------------ states

    def save_optimizer_states(self, fname: str) -> None:
        """Write optimizer state, masters, counters and the loss scale, all or nothing."""
        self._initialized().save_states(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Read a file of `save_optimizer_states`, under any policy, or one of stock MXNet.

        Parameters are not changed: they have a file of their own.

        Raises
        ------
        ValueError
            Another file, a damaged or a forged one, or another optimizer or network. Nothing in a
            file is executed.
        """
        trainer = self._initialized()
        if self._params_dirty:
            self._sync_params_from_devices()
        trainer.load_states(fname)
        if _is_distributed(self._kvstore):
            self._params_dirty = True  # workers exchanged rounded weights; the file has all bits
        else:
            self._write_masters(self._arg_params)


def resolve_loss_scale(loss_scale: Any, policy: Policy) -> LossScale:
    """Return a loss scale object, by default the one for the policy's gradient dtype."""
    if loss_scale is BY_DTYPE:
        loss_scale = "dynamic" if policy.needs_loss_scale else None
    return resolve(loss_scale)


def _record(
    executor: mx.executor.Executor, symbol: mx.sym.Symbol, grad_req: Dict[str, str]
) -> List[nd.NDArray]:
    """Run a training pass as Gluon does, into an executor's outputs; return those of the pass.

    An executor reuses the memory of activations in the backward pass, so that this could not run
    again.
    """
    arrays = {**executor.arg_dict, **executor.aux_dict}
    for name, gradient in executor.grad_dict.items():
        if gradient is not None and arrays[name].grad is None:  # data; parameters have theirs
            autograd.mark_variables(arrays[name], gradient, grad_req[name])
    with autograd.record():
        outputs = mx.nd.CachedOp(symbol)(*(arrays[name] for name in symbol.list_inputs()))
    outputs = [outputs] if isinstance(outputs, nd.NDArray) else outputs
    for own, output in zip(executor.outputs, outputs):
        output.copyto(own)
        own.wait_to_read()
    return outputs


def _part(grad: nd.NDArray, axis: int, part: slice, output: nd.NDArray) -> nd.NDArray:
    """Return a device's part of an output's gradient."""
    if axis >= 0:
        grad = nd.slice_axis(grad, axis=axis, begin=part.start, end=part.stop)
    return grad.as_in_context(output.context)


def _is_distributed(kvstore) -> bool:
    return kvstore is not None and kvstore.num_workers > 1


def _check_devices(context, policy: Policy) -> None:
    contexts = [context] if isinstance(context, mx.Context) else list(context)
    types = sorted({one.device_type for one in contexts})
    if len(types) > 1 or len(set(contexts)) < len(contexts):
        raise ValueError(
            f"context is {', '.join(map(str, contexts))}, expected different devices of one type."
        )
    check_device(policy, types[0])
