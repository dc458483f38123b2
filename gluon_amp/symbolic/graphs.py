"""The graphs that a Module's executors run: cast, with the loss scale, lowered for their device."""

from typing import Iterable, Sequence, Set, Tuple, Union

from gluon_amp.base.dtypes import dtype_name
from gluon_amp.base.messages import reason_of
from gluon_amp.lowering import lower
from gluon_amp.lowering.study.delayed_scaling import Scales
from gluon_amp.policy import Policy
from gluon_amp.symbolic.conversion import cast_symbol
from gluon_amp.symbolic.loss_head import scale_gradients

import mxnet as mx
from mxnet.io import DataDesc

Shapes = Sequence[Union[DataDesc, Tuple[str, Tuple[int, ...]]]]


class Graphs:
    """The cast graphs of one symbol, for training and for inference.

    `other_names` are the inputs besides the data: labels and states. If `scaled`, the loss heads
    multiply their gradients by the variable `loss_head.SCALE`.
    """

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        policy: Policy,
        data_names: Sequence[str],
        other_names: Sequence[str],
        scaled: bool,
    ):
        self._inference = self._training = cast_symbol(symbol, policy, data_names, other_names)
        self._scaled = scaled
        self.heads: Set[int] = set()  # numbers of the outputs whose gradients are scaled there
        if scaled:
            inputs = {*data_names, *other_names}
            self._training, self.heads = scale_gradients(self._inference, policy, inputs)
        # Those of the tensors, if the policy studies formats
        self.scales = Scales() if policy.studies else None

    def lowered(
        self, device_type: str, shapes: Shapes, training: bool, frozen: Iterable[str]
    ) -> mx.sym.Symbol:
        """Return a graph that a device ('cpu' or 'gpu') can run, for inputs of these dtypes.

        A dtype that is missing in `shapes` is float32. Inputs that the graph does not have are
        ignored. `frozen` names the parameters without a gradient. Raise `TypeError` for a dtype
        that the network's operators do not accept, such as float64.
        """
        symbol = self._training if training else self._inference
        arguments, states = symbol.list_arguments(), symbol.list_auxiliary_states()
        inputs = [one if isinstance(one, DataDesc) else DataDesc(*one) for one in shapes]
        input_dtypes = {one.name: one.dtype for one in inputs if one.name in arguments}
        try:
            arg_types, _, aux_types = symbol.infer_type_partial(**input_dtypes)
            types = dict(zip([*arguments, *states], [*arg_types, *aux_types]))
            known = {name: dtype for name, dtype in types.items() if dtype is not None}
            frozen = frozenset(frozen)
            attrs = symbol.attr_dict().items()
            sparse = frozenset(n for n, of in attrs if of.get("__storage_type__", "0") != "0")
            return lower(symbol, known, device_type, frozen, self.scales, sparse, self._scaled)
        except mx.base.MXNetError as error:
            bound = ", ".join(f"{name} {dtype_name(dtype)}" for name, dtype in input_dtypes.items())
            raise TypeError(
                f"The inputs are bound as {bound}, which the network's operators do not accept "
                f"({reason_of(error)}): bind them as float32."
            ) from None
