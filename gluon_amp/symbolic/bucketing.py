"""`BucketingModule`: a `mx.mod.BucketingModule` in mixed precision."""

import logging
from typing import Any, Callable, Dict, Hashable, Mapping, Optional, Sequence, Tuple, Union

from gluon_amp.policy import Policy
from gluon_amp.symbolic.graphs import Shapes
from gluon_amp.symbolic.module import Module, resolve_loss_scale
from gluon_amp.symbolic.parameters import Params
from gluon_amp.trainer import BY_DTYPE, MAX_CONSECUTIVE_SKIPS, StepReport
from gluon_amp.trainer.loss_scale import LossScale

import mxnet as mx
from mxnet import nd

# Returns the symbol, the data names and the label names of a bucket key.
SymGen = Callable[[Hashable], Tuple[mx.sym.Symbol, Sequence[str], Sequence[str]]]


class BucketingModule(mx.mod.BucketingModule):
    """A `mx.mod.BucketingModule` in mixed precision: see `Module`.

    All buckets share parameters, masters, optimizer and one loss scale.

    Parameters
    ----------
    sym_gen, default_bucket_key, logger
        As in `mx.mod.BucketingModule`.
    context, policy, loss_scale, max_consecutive_skips, **options
        As in `Module`.

    Attributes
    ----------
    last_report : StepReport or None
        What the last `update` did.

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
    _sym_gen: SymGen

    def __init__(
        self,
        sym_gen: SymGen,
        default_bucket_key: Hashable = None,
        logger: Any = logging,
        context: Optional[Union[mx.Context, Sequence[mx.Context]]] = None,
        *,
        policy: Union[str, Policy] = "float16",
        loss_scale: Any = BY_DTYPE,
        max_consecutive_skips: int = MAX_CONSECUTIVE_SKIPS,
        **options: Any,
    ):
        policy = Policy.parse(policy)
        # Every bucket's Module is built with these: one loss scale object for all.
        self._module_options = {
            **options,
            "logger": logger,
            "context": mx.cpu() if context is None else context,
            "policy": policy,
            "loss_scale": resolve_loss_scale(loss_scale, policy),
            "max_consecutive_skips": max_consecutive_skips,
        }
        super().__init__(
            sym_gen, default_bucket_key, logger, self._module_options["context"], **options
        )
        # MXNet's methods build stock Modules for keys that are not in `_buckets`.
        self.add_bucket(default_bucket_key)

    @classmethod
    def load(
        cls,
        prefix: str,
        epoch: int,
        sym_gen: SymGen,
        default_bucket_key: Hashable,
        load_optimizer_states: bool = False,
        **kwargs: Any,
    ) -> "BucketingModule":
        """Build a module from a checkpoint of stock MXNet or of this class; see `Module.load`."""
        keys = nd.load(f"{prefix}.buckets")[0].asnumpy().astype("int32")
        symbols = {int(key): mx.sym.load(f"{prefix}-{key}-symbol.json") for key in keys}
        arg_params, aux_params = mx.model.load_params(prefix, epoch)
        module = cls.load_dict(
            symbols, sym_gen, default_bucket_key, arg_params, aux_params, **kwargs
        )
        if load_optimizer_states:
            module.buckets[default_bucket_key].preload_optimizer_states(
                f"{prefix}-{epoch:04d}.states"
            )
        return module

    @classmethod
    def load_dict(
        cls,
        sym_dict: Mapping[Any, mx.sym.Symbol],
        sym_gen: SymGen,
        default_bucket_key: Hashable,
        arg_params: Params,
        aux_params: Params,
        **kwargs: Any,
    ) -> "BucketingModule":
        """As `mx.mod.BucketingModule.load_dict`."""
        module = cls(sym_gen, default_bucket_key, **kwargs)
        for key, symbol in sym_dict.items():
            module.add_bucket(key, symbol)
        module.preload_params(arg_params, aux_params)
        return module

    def preload_params(self, arg_params: Params, aux_params: Params) -> None:
        """As `Module.preload_params`."""
        self._curr_module = self._default
        self._default.preload_params(arg_params, aux_params)
        self.params_initialized = True

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale object; its `.scale` is what the next backward pass uses."""
        return self._module_options["loss_scale"]

    @property
    def buckets(self) -> Dict[Hashable, Module]:
        """The modules built so far, by bucket key."""
        return self._buckets

    @property
    def _default(self) -> Module:
        return self._buckets[self._default_bucket_key]

    def add_bucket(self, key: Hashable, symbol: Optional[mx.sym.Symbol] = None) -> None:
        """Build the module of a bucket, by default of the symbol that `sym_gen` returns."""
        default_symbol, data_names, label_names = self._call_sym_gen(key)
        self._buckets[key] = Module(
            default_symbol if symbol is None else symbol,
            data_names,
            label_names,
            **self._module_options,
        )

    def _reset_bind(self):
        before = self._default
        super()._reset_bind()
        self.add_bucket(self._default_bucket_key)
        if before.optimizer_initialized:
            self._default.borrow_optimizer(before)

    def switch_bucket(
        self, bucket_key: Hashable, data_shapes: Shapes, label_shapes: Optional[Shapes] = None
    ) -> None:
        """As `mx.mod.BucketingModule.switch_bucket`."""
        new = bucket_key not in self._buckets
        if new:
            self.add_bucket(bucket_key)
        super().switch_bucket(bucket_key, data_shapes, label_shapes)
        if new and self._monitor is not None:
            self._curr_module.install_monitor(self._monitor)

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Union[str, mx.optimizer.Optimizer] = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """As `Module.init_optimizer`."""
        current = self._curr_module
        self._curr_module = self._default  # which has all parameters
        try:
            super().init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        finally:
            self._curr_module = current

    def update(self) -> None:
        """As `Module.update`."""
        super().update()
        self.last_report = self._curr_module.last_report

    def save_checkpoint(
        self,
        prefix: str,
        epoch: int,
        save_optimizer_states: bool = False,
        remove_amp_cast: bool = True,
    ) -> None:
        """As `mx.mod.BucketingModule.save_checkpoint`, and optionally `prefix-0001.states`.

        Bucket keys have to be integers.
        """
        generate = self._sym_gen
        self._sym_gen = lambda key: (self._buckets[key].symbol, (), ())  # in float32
        try:
            super().save_checkpoint(prefix, epoch, remove_amp_cast)
        finally:
            self._sym_gen = generate
        if save_optimizer_states:
            self.save_optimizer_states(f"{prefix}-{epoch:04d}.states")

    def save_optimizer_states(self, fname: str) -> None:
        """As `Module.save_optimizer_states`."""
        self._default.save_optimizer_states(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """As `Module.load_optimizer_states`."""
        self.get_params()
        self._default.load_optimizer_states(fname)
