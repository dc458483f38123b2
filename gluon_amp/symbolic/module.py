"""The Module API twin: `convert` a symbol, train it with `Module` or `BucketingModule`.

A Symbol's loss head (`SoftmaxOutput`, `MakeLoss`, ...) makes its gradient itself, so there is no
loss to multiply. The scale is multiplied to the gradient that leaves the head, in float32, before
any cast to float16, by a few operators that let the values pass unchanged (see `_with_scale`). The
scale is an argument of the graph, so it changes between two steps without rebinding anything.

The step itself (overflow check, masters, skip and undo, states) is the Gluon `Trainer`'s, on
Parameters that are the executors' own arrays.
"""

import logging
import warnings
from contextlib import nullcontext
from typing import Dict, Iterable, List, Optional, Union

import numpy as np

from gluon_amp.casting import statistics
from gluon_amp.casting.binding import reason_of
from gluon_amp.dtypes import dtype_name
from gluon_amp.lowering import lower
from gluon_amp.lowering.added_gradients import WRITTEN_ATTR
from gluon_amp.lowering.bfloat16 import check_device as check_bfloat16
from gluon_amp.messages import did_you_mean
from gluon_amp.optimizer import create, masters
from gluon_amp.policy import Policy, graph
from gluon_amp.trainer import BY_DTYPE, MAX_CONSECUTIVE_SKIPS, StepReport, Trainer
from gluon_amp.trainer.loss_scale import LossScale, NoLossScale, resolve

import mxnet as mx
from mxnet import autograd, nd
from mxnet.io import DataDesc

__all__ = ["BucketingModule", "Module", "convert"]

# The variable that holds the scale, float32, of shape (1,), in the graphs that executors run.
SCALE = "gluon_amp_loss_scale"

# Operators that make the gradient of their first input themselves, whatever gradient they are given
LOSS_HEADS = frozenset(
    """SoftmaxOutput LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput SVMOutput
    MakeLoss make_loss""".split()
)

# Adds a term of its own to the gradient on its way: neither before nor behind it is the right place
UNSCALABLE = "IdentityAttachKLSparseReg"

UNIFORM = mx.init.Uniform(0.01)


def convert(
    symbol: mx.sym.Symbol,
    policy: Union[str, Policy] = "float16",
    data_names: Iterable[str] = ("data",),
    label_names: Iterable[str] = ("softmax_label",),
) -> mx.sym.Symbol:
    """Return a symbol that computes as a policy says, for a device with that dtype's kernels.

    Parameters
    ----------
    symbol : Symbol
        A network or several outputs grouped, with or without loss heads; it is left as it is.
    policy : str or Policy
        As for `gluon_amp.cast`. `'float32'` changes nothing.
    data_names, label_names : list of str
        The inputs; all other variables are parameters. A label that the symbol does not have (as in
        a symbol for inference) may be named.

    Returns
    -------
    Symbol
        Same arguments, auxiliary states and outputs. Parameters that only matrix products read are
        declared in the policy's `param_dtype`, so that binding allocates them in it; all others,
        BatchNorm's running statistics too, in float32. Loss heads compute and outputs are float32.
        To run float16 on a CPU use `Module`, which lowers the graph for its device.

    Raises
    ------
    ValueError
        Unknown policy, a data name that the symbol does not have (near matches are listed), or a
        block pattern that matches no node.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = mx.sym.FullyConnected(mx.sym.var('data'), num_hidden=2, name='fc')
    >>> cast = amp.symbolic.convert(net, 'float16')
    >>> [dtype.__name__ for dtype in cast.infer_type(data='float32')[0]]  # data, weight, bias
    ['float32', 'float16', 'float16']
    """
    policy = Policy.parse(policy)
    inputs = _input_names(symbol, data_names, label_names)
    policy.check_blocks(("", node["name"]) for node in graph.to_json(symbol)["nodes"])
    if policy.compute_dtype == "float32":
        return graph.apply(symbol, policy, {})
    return graph.apply(symbol, policy, graph.parameter_dtypes(symbol, policy, inputs))


class Module(mx.mod.Module):
    """A `mx.mod.Module` in mixed precision.

        module = amp.symbolic.Module(symbol, context=mx.gpu(), policy='float16')
        module.fit(train_iter, optimizer='sgd', optimizer_params={'learning_rate': .1}, num_epoch=9)

    What `get_params`, `save_checkpoint` and callbacks see are the symbol as it was given and
    float32 parameters (the masters), so that stock MXNet loads the files. On a CPU float16 is
    emulated.

    With a loss scale each `update` checks the gradients first. If one is not finite, the step is
    skipped, and all it changed is undone: BatchNorm's running statistics, optimizer counters and
    buffers of ``grad_req='add'``. A `grad_scale` in the symbol and a `rescale_grad` given to the
    optimizer keep their meaning, so the FAQ's static recipe (``grad_scale=128`` and
    ``rescale_grad=1/128/batch``) works, with ``loss_scale=None`` or on top of one.

    Parameters
    ----------
    symbol, data_names, ..., compression_params
        As in `mx.mod.Module`.
    policy : str or Policy
        As for `gluon_amp.cast`.
    loss_scale : None, number, 'dynamic' or LossScale
        By default dynamic where the policy computes in float16, else None.
    max_consecutive_skips : int
        As in `gluon_amp.Trainer`.

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

    def __init__(
        self,
        symbol,
        data_names=("data",),
        label_names=("softmax_label",),
        logger=logging,
        context=None,
        work_load_list=None,
        fixed_param_names=None,
        state_names=None,
        group2ctxs=None,
        compression_params=None,
        policy="float16",
        loss_scale=BY_DTYPE,
        max_consecutive_skips=MAX_CONSECUTIVE_SKIPS,
    ):
        self._policy = Policy.parse(policy)
        self._loss_scale = _resolve(loss_scale, self._policy)
        self._max_consecutive_skips = max_consecutive_skips
        context = mx.cpu() if context is None else context
        _check_devices(context, self._policy)
        self._cast_symbol = convert(
            symbol, self._policy, data_names or (), [*(label_names or ()), *(state_names or ())]
        )
        super().__init__(
            symbol,
            data_names=data_names,
            label_names=label_names,
            logger=logger,
            context=context,
            work_load_list=work_load_list,
            fixed_param_names=fixed_param_names,
            state_names=state_names,
            group2ctxs=group2ctxs,
            compression_params=compression_params,
        )
        self._trainer = None
        self._scaled_inside = set()
        self._gradients_wait = False  # for `update`
        self._input_scale = 1.0  # of the input gradients
        if self._scaling:
            self._scaled_symbol, self._scaled_inside = _with_scale(
                self._cast_symbol, self._policy, {*self._data_names, *self._label_names}
            )

    @classmethod
    def load(cls, prefix, epoch, load_optimizer_states=False, **kwargs):
        """Build a module from a checkpoint, stock MXNet's or one of ours.

        Parameters
        ----------
        prefix, epoch
            As in `mx.mod.Module.load`: reads `prefix-symbol.json` and `prefix-0001.params`.
        load_optimizer_states : bool
            Also read `prefix-0001.states` (optimizer, masters, loss scale) in `init_optimizer`;
            they have to be ours.
        **kwargs
            The constructor's arguments.
        """
        symbol, arg_params, aux_params = mx.model.load_checkpoint(prefix, epoch)
        module = cls(symbol, **kwargs)
        module._take(arg_params, aux_params)
        if load_optimizer_states:
            module._preload_opt_states = f"{prefix}-{epoch:04d}.states"
        return module

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale object; its `.scale` is what the next backward pass uses."""
        return self._loss_scale

    @property
    def output_shapes(self):
        """Names, as in the symbol, and shapes of the outputs."""
        return [(name, shape) for name, (_, shape) in zip(self.output_names, super().output_shapes)]

    @property
    def _scaling(self):
        return not isinstance(self._loss_scale, NoLossScale)

    # ------------------------------------------------------------------ binding

    def bind(
        self,
        data_shapes,
        label_shapes=None,
        for_training=True,
        inputs_need_grad=False,
        force_rebind=False,
        shared_module=None,
        grad_req="write",
    ):
        """As `mx.mod.Module.bind`, of the cast graph, lowered for the device.

        Raises
        ------
        TypeError
            Data of a dtype that the network's operators do not take, such as float64.
        """
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        if self.binded and self.params_initialized:
            self.get_params()  # out of the executors that are about to go
        if isinstance(grad_req, (list, tuple)):
            # the executors have one argument more
            grad_req = dict(zip(self._symbol.list_arguments(), grad_req))
        plain, fresh = self._symbol, not self.params_initialized
        self._symbol = self._executable(data_shapes, label_shapes, for_training, grad_req)
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
            self._symbol = plain
        group = self._exec_group
        group.output_names = self._output_names
        group.output_layouts = [
            DataDesc.get_batch_axis(plain[i].attr("__layout__")) for i in range(group.num_outputs)
        ]
        if shared_module is None:
            if fresh:
                # an initializer's values keep all their bits here, and so in the masters
                self._arg_params = _in_float32(self._arg_params)
            if self._trainer is not None:
                self._point_trainer_here()

    def _executable(self, data_shapes, label_shapes, for_training, grad_req):
        symbol = self._scaled_symbol if self._scaling and for_training else self._cast_symbol
        descriptions = [
            shape if isinstance(shape, DataDesc) else DataDesc(*shape)
            for shape in [*data_shapes, *(label_shapes or ())]
        ]
        arguments, states = symbol.list_arguments(), symbol.list_auxiliary_states()
        fed = {d.name: d.dtype for d in descriptions if d.name in arguments}
        try:
            arg_types, _, aux_types = symbol.infer_type_partial(**fed)
            known = {
                name: dtype
                for name, dtype in zip([*arguments, *states], [*arg_types, *aux_types])
                if dtype is not None
            }
            frozen = {*self._fixed_param_names} if for_training else set()
            if isinstance(grad_req, dict):
                frozen.update(name for name, one in grad_req.items() if one == "null")
            return lower(symbol, known, self._context[0].device_type, frozenset(frozen))
        except mx.base.MXNetError as error:
            given = ", ".join(f"{name} {dtype_name(dtype)}" for name, dtype in fed.items())
            raise TypeError(
                f"The inputs are bound as {given}, which the network's operators cannot take "
                f"({reason_of(error)}): bind them as float32."
            ) from None

    # ------------------------------------------------------------------ parameters

    def init_params(
        self,
        initializer=UNIFORM,
        arg_params=None,
        aux_params=None,
        allow_missing=False,
        force_init=False,
        allow_extra=False,
    ):
        """As `mx.mod.Module.init_params`; given values may be float32, float16 or float64.

        The masters take over all bits of float32 values, of which the weights are the roundings.

        Raises
        ------
        TypeError, ValueError
            Values of another dtype, or of another shape than the symbol's; nothing is changed then.
        """
        if self.params_initialized and not force_init:
            super().init_params()  # says that it is ignored
            return
        assert self.binded, "call bind before initializing the parameters"
        arg_params = self._checked(arg_params, self._arg_params)
        aux_params = self._checked(aux_params, self._aux_params)
        super().init_params(
            initializer, arg_params, aux_params, allow_missing, force_init, allow_extra
        )
        self._write_masters()

    def set_params(
        self, arg_params, aux_params, allow_missing=False, force_init=True, allow_extra=False
    ):
        """As `mx.mod.Module.set_params`; see `init_params` for what may be given."""
        if allow_missing and (force_init or not self.params_initialized):
            if self.params_initialized:
                self.get_params()  # those that are missing keep their values
            given = {**(arg_params or {}), **(aux_params or {})}
            unknown = sorted(set(given) - {*self._arg_params, *self._aux_params})
            if unknown and not allow_extra:
                raise ValueError(
                    f"The symbol has no parameter {unknown[0]!r}"
                    f"{did_you_mean(unknown[0], self._arg_params)}: "
                    "leave it out, or pass allow_extra=True."
                )
            arg_params = {**self._arg_params, **(arg_params or {})}
            aux_params = {**self._aux_params, **(aux_params or {})}
        super().set_params(arg_params, aux_params, False, force_init, allow_extra)

    def _take(self, arg_params, aux_params):
        """Hold loaded values until they are bound."""
        self._arg_params = _in_float32(arg_params)
        self._aux_params = _in_float32(aux_params)
        self.params_initialized = True

    @staticmethod
    def _checked(given, own):
        if given is None:
            return None
        for name, array in given.items():
            if name not in own:
                continue
            dtype = dtype_name(array.dtype)
            if dtype not in ("float16", "float32", "float64"):
                raise TypeError(
                    f"The values given for {name} are {dtype}, expected float32: convert them with "
                    "array.astype('float32')."
                )
            if array.shape != own[name].shape:
                raise ValueError(
                    f"The values given for {name} have shape {array.shape}, the symbol wants "
                    f"{own[name].shape}: leave {name} out and pass allow_missing=True if this is "
                    "a new layer."
                )
        return {**given, **_in_float32({n: a for n, a in given.items() if n in own})}

    def _sync_params_from_devices(self):
        """Bring `_arg_params` and `_aux_params` up to date, weights from their masters."""
        group, trainer = self._exec_group, self._trainer
        if trainer is None:
            current = dict(zip(group.param_names, (arrays[0] for arrays in group.param_arrays)))
        else:
            trainer.refresh_masters()
            current = {parameter.name: parameter.data() for parameter in trainer.parameters}
            current.update(
                (trainer.parameters[index].name, master)
                for (device, index), _, master in trainer.masters()
                if device == 0
            )
        for name, held in self._arg_params.items():
            value = current[name].as_in_context(mx.cpu())
            if np.dtype(value.dtype) == np.float16:
                masters.sync_master(value, held)  # has no master, as nothing updates it
            else:
                value.copyto(held)
        # every device has its own running statistics
        for name, arrays in zip(group.aux_names, group.aux_arrays):
            mean = sum(array.as_in_context(mx.cpu()) for array in arrays) / len(arrays)
            mean.copyto(self._aux_params[name])
        self._params_dirty = False

    # ------------------------------------------------------------------ the optimizer

    def init_optimizer(
        self,
        kvstore="local",
        optimizer="sgd",
        optimizer_params=(("learning_rate", 0.01),),
        force_init=False,
    ):
        """As `mx.mod.Module.init_optimizer`, but the update is never made on the kvstore.

        There it would be made before an overflow can be seen; the kvstore only reduces gradients.

        Parameters
        ----------
        kvstore, force_init
            As in `mx.mod.Module`.
        optimizer : str or mxnet.optimizer.Optimizer
            'sgd', 'nag', 'adam', 'adamw', 'lars' and 'lamb' are those of `gluon_amp.optimizer`; any
            other name that MXNet knows is built with ``multi_precision=True``.
        optimizer_params : dict
            `rescale_grad` is 1 / (batch size · workers) by default; the loss scale comes on top.

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
        kvstore, _ = mx.model._create_kvstore(kvstore, len(self._context), self._arg_params)
        workers = 1 if kvstore is None else kvstore.num_workers
        rescale_grad = 1.0 / (self._exec_group.batch_size * workers)
        names = dict(enumerate(self._param_names))
        if isinstance(optimizer, str):
            settings = {"rescale_grad": rescale_grad, **dict(optimizer_params)}
            optimizer = create(optimizer, sym=self._symbol, param_idx2name=names, **settings)
        elif optimizer.rescale_grad != rescale_grad:
            warnings.warn(
                f"The optimizer was built with rescale_grad {optimizer.rescale_grad:g}, which is "
                f"not 1 / (batch size * workers) = {rescale_grad:g}; it is kept.",
                stacklevel=2,
            )
        parameters = self._parameters()
        trainer = Trainer(
            parameters,
            optimizer,
            kvstore=kvstore,
            compression_params=self._compression_params,
            loss_scale=self._loss_scale,
            max_consecutive_skips=self._max_consecutive_skips,
        )
        # Module finds lr_mult and wd_mult by name, in the symbol's attributes and the optimizer
        optimizer.param_dict = {}
        optimizer.idx2name = names
        trainer.ready()
        self._trainer = trainer
        self._optimizer, self._kvstore = optimizer, kvstore
        self._update_on_kvstore, self._updater = False, None
        self._create_masters()
        if _is_distributed(kvstore):
            self._sync_params_from_devices()  # all workers have just got the first one's weights
        else:
            self._write_masters()
        self.optimizer_initialized = True
        if self._preload_opt_states is not None:
            self.load_optimizer_states(self._preload_opt_states)
            self._preload_opt_states = None

    def borrow_optimizer(self, shared_module):
        """Share another module's optimizer, masters and loss scale; used in bucketing."""
        super().borrow_optimizer(shared_module)
        self._trainer = shared_module._trainer
        self._loss_scale = shared_module._loss_scale

    def _parameters(self) -> List["_ExecutorParameter"]:
        found = []
        for name in [*self._param_names, *self._aux_names]:
            data, grads = self._arrays(name)
            grad_req = "null" if grads is None else self._exec_group.grad_req[name]
            state = name in self._aux_names
            found.append(_ExecutorParameter(name, data, grads, grad_req, self._context, state))
        return found

    def _point_trainer_here(self):
        """Let the trainer work on the arrays of executors that were bound after it was built."""
        for parameter in self._trainer.parameters:
            parameter.point(*self._arrays(parameter.name))
        self._write_masters()

    def _arrays(self, name):
        """One parameter's arrays on all devices, and its gradients (or None)."""
        execs = self._exec_group.execs
        if name in self._aux_names:
            return [e.aux_dict[name] for e in execs], None
        grads = [e.grad_dict.get(name) for e in execs]
        return [e.arg_dict[name] for e in execs], None if grads[0] is None else grads

    def _create_masters(self):
        """Create the optimizer's states of float16 weights now, and not at the first update."""
        trainer = self._trainer
        for device, updater in enumerate(trainer.updaters):
            for index, parameter in enumerate(trainer.parameters):
                if np.dtype(parameter.dtype) == np.float16 and parameter.grad_req != "null":
                    weight = parameter.list_data()[device]
                    updater.states[index] = self._optimizer.create_state_multi_precision(
                        index, weight
                    )
                    updater.states_synced[index] = True

    def _write_masters(self):
        """Give the masters the float32 values of which the weights are the roundings."""
        if self._trainer is not None:
            for (_, index), _, master in self._trainer.masters():
                self._arg_params[self._trainer.parameters[index].name].copyto(master)

    # ------------------------------------------------------------------ the step

    def forward(self, data_batch, is_train=None):
        """As `mx.mod.Module.forward`."""
        training = self.for_training if is_train is None else is_train
        if training and self._trainer is not None:
            statistics.notify(self._trainer.statistics)
        super().forward(data_batch, is_train)

    def backward(self, out_grads=None):
        """As `mx.mod.Module.backward`, with the loss scale in all gradients.

        Parameters
        ----------
        out_grads : NDArray or list of NDArray
            Gradients of outputs that are no loss heads, without the scale.
        """
        assert self.binded and self.params_initialized
        trainer = self._trainer
        scaling = trainer is not None and self._scaling
        outputs = [out for executor in self._exec_group.execs for out in executor.outputs]
        with trainer.scaled_pass(outputs) if scaling else nullcontext(1.0) as scale:
            for executor in self._exec_group.execs:
                if SCALE in executor.arg_dict:
                    executor.arg_dict[SCALE][:] = scale
            if isinstance(out_grads, nd.NDArray):
                out_grads = [out_grads]
            if out_grads is not None and scale != 1.0:
                out_grads = [
                    grad if k in self._scaled_inside else grad * scale
                    for k, grad in enumerate(out_grads)
                ]
            super().backward(out_grads)
        self._input_scale = scale
        self._gradients_wait = True
        if trainer is not None:
            for parameter in trainer.parameters:
                if parameter.grad_req != "null" and parameter.name in self._param_names:
                    for array in parameter.list_data():
                        array._fresh_grad = True

    def get_input_grads(self, merge_multi_context=True):
        """As `mx.mod.Module.get_input_grads`: true gradients, the loss scale divided out."""
        grads = super().get_input_grads(merge_multi_context)
        if self._input_scale == 1.0:
            return grads
        if merge_multi_context:
            return [grad / self._input_scale for grad in grads]
        return [[grad / self._input_scale for grad in on_devices] for on_devices in grads]

    def update(self):
        """Make one step, or skip it where a gradient is not finite; `last_report` says which.

        Raises
        ------
        RuntimeError
            Without a backward pass since the last `update`.
        FloatingPointError
            After `max_consecutive_skips` overflows in a row that no lower scale could answer.
        """
        assert self.binded and self.params_initialized and self.optimizer_initialized
        if not self._gradients_wait:
            raise RuntimeError(
                "There are no new gradients to update with: call forward() and backward() before "
                "each update()."
            )
        self._params_dirty = True
        self._gradients_wait = False
        trainer, optimizer = self._trainer, self._optimizer
        # Whoever sets optimizer.rescale_grad during training finds it respected, and without the
        # loss scale in it.
        own = trainer.rescale = optimizer.rescale_grad
        try:
            # In bucketing, some parameters may have no gradients this time.
            self.last_report = trainer.step(1, ignore_stale_grad=True)
        finally:
            optimizer.rescale_grad = own

    # ------------------------------------------------------------------ states

    def save_optimizer_states(self, fname):
        """Write optimizer state, masters, counters and the loss scale, in one piece or not at all.

        Parameters
        ----------
        fname : str
        """
        assert self.optimizer_initialized
        self._trainer.save_states(fname)

    def load_optimizer_states(self, fname):
        """Read what `save_optimizer_states` wrote, under this or another policy, or stock MXNet's.

        The parameters stay what they are: they have a file of their own.

        Parameters
        ----------
        fname : str

        Raises
        ------
        ValueError
            Another file, a damaged or a forged one, or another optimizer or network. Nothing in a
            file is executed.
        """
        assert self.optimizer_initialized
        if self._params_dirty:
            self._sync_params_from_devices()
        self._trainer.load_states(fname)
        if _is_distributed(self._kvstore):
            self._params_dirty = True  # workers exchanged rounded weights; the file has all bits
        else:
            self._write_masters()


class _ExecutorParameter(mx.gluon.Parameter):
    """A Gluon Parameter whose arrays are those of executors, one on each device, so that a
    `Trainer` updates, checks, saves and undoes them.
    """

    def __init__(self, name, data, grads, grad_req, contexts, state):
        super().__init__(
            name,
            grad_req=grad_req,
            shape=data[0].shape,
            dtype=data[0].dtype,
            differentiable=not state,
            stype=data[0].stype,
            grad_stype="default" if grads is None else grads[0].stype,
        )
        self._ctx_list = list(contexts)
        self.point(data, grads)

    def point(self, data, grads):
        """Hold these arrays, and gradients (or None), from now on."""
        self._data, self._grad = data, grads
        if grads is not None:
            # MXNet keeps track of which gradients are fresh only for marked arrays
            autograd.mark_variables(data, grads, self.grad_req)

    def data(self, ctx=None):
        return self._data[0 if ctx is None else self._ctx_list.index(ctx)]


class BucketingModule(mx.mod.BucketingModule):
    """A `mx.mod.BucketingModule` in mixed precision: see `Module`.

    All buckets share parameters, masters, optimizer and one loss scale.

    Parameters
    ----------
    sym_gen, ..., compression_params
        As in `mx.mod.BucketingModule`.
    policy, loss_scale, max_consecutive_skips
        As in `Module`.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> def generate(length):
    ...     net = mx.sym.FullyConnected(mx.sym.var('data'), num_hidden=2, name='fc')
    ...     return mx.sym.SoftmaxOutput(net, name='softmax'), ('data',), ('softmax_label',)
    >>> module = amp.symbolic.BucketingModule(generate, default_bucket_key=3, policy='float16')
    >>> module.bind([('data', (2, 3))], [('softmax_label', (2,))])
    >>> module.output_shapes
    [('softmax_output', (2, 2))]
    """

    last_report: Optional[StepReport] = None

    def __init__(
        self,
        sym_gen,
        default_bucket_key=None,
        logger=logging,
        context=None,
        work_load_list=None,
        fixed_param_names=None,
        state_names=None,
        group2ctxs=None,
        compression_params=None,
        policy="float16",
        loss_scale=BY_DTYPE,
        max_consecutive_skips=MAX_CONSECUTIVE_SKIPS,
    ):
        policy = Policy.parse(policy)
        self._precision = {
            "policy": policy,
            "loss_scale": _resolve(loss_scale, policy),
            "max_consecutive_skips": max_consecutive_skips,
        }
        super().__init__(
            sym_gen,
            default_bucket_key,
            logger=logger,
            context=mx.cpu() if context is None else context,
            work_load_list=work_load_list,
            fixed_param_names=fixed_param_names,
            state_names=state_names,
            group2ctxs=group2ctxs,
            compression_params=compression_params,
        )
        # MXNet's methods build stock Modules for keys that they do not find here
        self._add_bucket(default_bucket_key)

    @classmethod
    def load(
        cls,
        prefix,
        epoch,
        sym_gen=None,
        default_bucket_key=None,
        load_optimizer_states=False,
        **kwargs,
    ):
        """Build a module from a checkpoint, stock MXNet's or one of ours.

        Parameters
        ----------
        prefix, epoch, sym_gen, default_bucket_key
            As in `mx.mod.BucketingModule.load`.
        load_optimizer_states : bool
            As in `Module.load`.
        **kwargs
            The constructor's arguments.
        """
        keys = nd.load(f"{prefix}.buckets")[0].asnumpy().astype("int32")
        symbols = {int(key): mx.sym.load(f"{prefix}-{key}-symbol.json") for key in keys}
        arg_params, aux_params = mx.model.load_params(prefix, epoch)
        module = cls.load_dict(
            symbols, sym_gen, default_bucket_key, arg_params, aux_params, **kwargs
        )
        if load_optimizer_states:
            module._default._preload_opt_states = f"{prefix}-{epoch:04d}.states"
        return module

    @classmethod
    def load_dict(
        cls,
        sym_dict=None,
        sym_gen=None,
        default_bucket_key=None,
        arg_params=None,
        aux_params=None,
        **kwargs,
    ):
        """As `mx.mod.BucketingModule.load_dict`."""
        module = cls(sym_gen, default_bucket_key, **kwargs)
        for key, symbol in sym_dict.items():
            module._add_bucket(key, symbol)
        module._curr_module = module._default
        module._default._take(arg_params, aux_params)
        module.params_initialized = True
        return module

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale object; its `.scale` is what the next backward pass uses."""
        return self._precision["loss_scale"]

    @property
    def _default(self) -> Module:
        return self._buckets[self._default_bucket_key]

    def _add_bucket(self, key, symbol=None):
        made, data_names, label_names = self._call_sym_gen(key)
        self._buckets[key] = Module(
            made if symbol is None else symbol,
            data_names,
            label_names,
            logger=self.logger,
            context=self._context,
            work_load_list=self._work_load_list,
            fixed_param_names=self._fixed_param_names,
            state_names=self._state_names,
            group2ctxs=self._group2ctxs,
            compression_params=self._compression_params,
            **self._precision,
        )

    def _reset_bind(self):
        before = self._default
        super()._reset_bind()
        self._add_bucket(self._default_bucket_key)
        if before.optimizer_initialized:
            self._default.borrow_optimizer(before)

    def switch_bucket(self, bucket_key, data_shapes, label_shapes=None):
        """As `mx.mod.BucketingModule.switch_bucket`."""
        new = bucket_key not in self._buckets
        if new:
            self._add_bucket(bucket_key)
        super().switch_bucket(bucket_key, data_shapes, label_shapes)
        if new and self._monitor is not None:
            self._curr_module.install_monitor(self._monitor)

    def init_optimizer(
        self,
        kvstore="local",
        optimizer="sgd",
        optimizer_params=(("learning_rate", 0.01),),
        force_init=False,
    ):
        """As `Module.init_optimizer`."""
        current = self._curr_module
        self._curr_module = self._default  # which has all parameters
        try:
            super().init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        finally:
            self._curr_module = current

    def update(self):
        """As `Module.update`."""
        super().update()
        self.last_report = self._curr_module.last_report

    def save_checkpoint(self, prefix, epoch, save_optimizer_states=False, remove_amp_cast=True):
        """As `mx.mod.BucketingModule.save_checkpoint`; bucket keys have to be integers.

        Parameters
        ----------
        prefix, epoch, remove_amp_cast
            As in `mx.mod.Module.save_checkpoint`.
        save_optimizer_states : bool
            Also write `prefix-0001.states`.
        """
        super().save_checkpoint(prefix, epoch, remove_amp_cast)
        if save_optimizer_states:
            self.save_optimizer_states(f"{prefix}-{epoch:04d}.states")

    def save_optimizer_states(self, fname):
        """As `Module.save_optimizer_states`."""
        self._default.save_optimizer_states(fname)

    def load_optimizer_states(self, fname):
        """As `Module.load_optimizer_states`."""
        self.get_params()
        self._default.load_optimizer_states(fname)


# ---------------------------------------------------------------------- the scale in the graph


def _with_scale(symbol, policy, inputs):
    """Return a cast graph that multiplies gradients by the variable `SCALE` behind its loss heads.

    In front of each head's data x stands ``x - (sign(x) - sign_ste(x)) * scale``, where the first
    two x are constants for the backward pass and `sign_ste` is the sign function with gradient 1.
    Forward the difference is 0 for every x, also infinite, so that x passes bit for bit; backward
    the gradient is multiplied by the scale, exactly, as it is a power of two. (``x * scale`` in its
    place would make NaN of the -inf of masked logits; MXNet's `gradientmultiplier` takes a constant
    only; a scale in the heads' own `grad_scale` means to rebind at every change.)

    A Custom operator is taken for a head where it is an output that nothing else reads. This is
    right whether it uses the gradient that it is given or not, since the scale is multiplied to
    what leaves it, and `Module.backward` leaves its head gradient alone.

    Parameters
    ----------
    symbol : Symbol
    policy : Policy
    inputs : set of str
        Data and labels.

    Returns
    -------
    Symbol
    set of int
        Numbers of the outputs of heads.
    """
    old = graph.to_json(symbol)
    _check_heads(old, policy)
    entries = _head_inputs(old, inputs)
    nodes, places = [], []

    def emit(op, name, *read, **attrs):
        nodes.append({"op": op, "name": name, "attrs": attrs, "inputs": [list(e) for e in read]})
        return [len(nodes) - 1, 0, 0]

    written = {WRITTEN_ATTR: "True"}
    dtype = graph.MX_DTYPE_CODES["float32"]
    scale = emit("null", SCALE, __shape__="(1,)", __dtype__=dtype, **written)
    for i, node in enumerate(old["nodes"]):
        read = [[places[source], *rest] for source, *rest in node["inputs"]]
        for k in entries.get(i, ()):
            name = f"{node['name']}_{k}_scale"
            constant = emit("BlockGrad", f"{name}_constant", read[k])
            sign = emit("sign", f"{name}_sign", constant)
            passing = emit("_contrib_sign_ste", f"{name}_passing", read[k])
            zero = emit("elemwise_sub", f"{name}_zero", sign, passing)
            scaled = emit("broadcast_mul", f"{name}_scaled", zero, scale)
            read[k] = emit("elemwise_sub", name, constant, scaled)
        places.append(len(nodes))
        nodes.append({**node, "inputs": read})
    heads = [[places[source], *rest] for source, *rest in old["heads"]]
    scaled = graph.from_json({**old, "nodes": nodes, "heads": heads}, like=symbol)
    outputs = [_behind_casts(old["nodes"], source) for source, *_ in old["heads"]]
    return scaled, {k for k, source in enumerate(outputs) if source in entries}


def _head_inputs(old: dict, inputs: set) -> Dict[int, list]:
    """Return which inputs of which nodes of a graph get a scaled gradient."""
    nodes = old["nodes"]
    found = {i: [0] for i, node in enumerate(nodes) if _is_head(node)}
    outputs = {_behind_casts(nodes, source) for source, *_ in old["heads"]}
    read = {
        source
        for node in nodes
        for source, *_ in node["inputs"]
        if node["op"] not in ("BlockGrad", "amp_cast")
    }
    for i in outputs - read:
        if nodes[i]["op"] == "Custom":
            sources = [_behind_casts(nodes, source) for source, *_ in nodes[i]["inputs"]]
            found[i] = [k for k, s in enumerate(sources) if nodes[s]["name"] not in inputs]
    return found


def _is_head(node: dict) -> bool:
    # with out_grad=True SoftmaxOutput multiplies the gradient that it is given, as others do
    takes_gradient = node.get("attrs", {}).get("out_grad", "False") in ("True", "1")
    return node["op"] in LOSS_HEADS and not takes_gradient


def _behind_casts(nodes: list, i: int) -> int:
    while nodes[i]["op"] == "amp_cast":
        i = nodes[i]["inputs"][0][0]
    return i


def _check_heads(old: dict, policy: Policy) -> None:
    for node in old["nodes"]:
        name, op = node["name"], node["op"]
        if _is_head(node) and policy.decide(op, "", name).kind == "compute":
            raise ValueError(
                f"The loss head {name} is pinned to {policy.compute_dtype}, but a loss scale works "
                "on float32 gradients: take the pin off, or pass loss_scale=None."
            )
        if op == UNSCALABLE:
            raise ValueError(
                f"{name} adds a term of its own to the gradients, which cannot be scaled with "
                f"them: take the {UNSCALABLE} out, or pass loss_scale=None."
            )


# ---------------------------------------------------------------------- helpers


def _resolve(loss_scale, policy: Policy) -> LossScale:
    if loss_scale is BY_DTYPE:
        loss_scale = "dynamic" if policy.compute_dtype == "float16" else None
    return resolve(loss_scale)


def _is_distributed(kvstore) -> bool:
    return kvstore is not None and kvstore.num_workers > 1


def _check_devices(context, policy: Policy) -> None:
    contexts = [context] if isinstance(context, mx.Context) else list(context)
    types = sorted({one.device_type for one in contexts})
    if len(types) > 1 or len(set(contexts)) < len(contexts):
        raise ValueError(
            f"context is {', '.join(map(str, contexts))}, expected different devices of one type."
        )
    if policy.compute_dtype == "bfloat16":
        check_bfloat16(types[0])


def _input_names(symbol, data_names, label_names) -> set:
    for given in (data_names, label_names):
        if isinstance(given, str):
            raise ValueError(f"Input names are a list, received the string {given!r}: [{given!r}].")
    arguments = symbol.list_arguments()
    for name in data_names:
        if name not in arguments:
            endings = ("_weight", "_bias", "_gamma", "_beta")
            inputs = [a for a in arguments if not a.endswith(endings)]
            raise ValueError(
                f"The symbol has no input {name!r}{did_you_mean(name, arguments)}: pass "
                f"data_names, probably of {', '.join(inputs)}."
            )
    return {*data_names, *label_names}


def _in_float32(params: Dict[str, nd.NDArray]) -> Dict[str, nd.NDArray]:
    return {
        name: array.astype("float32", copy=False)
        if dtype_name(array.dtype) in ("float16", "float64")
        else array
        for name, array in params.items()
    }
