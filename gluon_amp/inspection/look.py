"""What a tensor of a training is, and what formats would do to it; the gradients of parameters.

These are read from their buffers. `sampler` has the other tensors of a step.
"""

from itertools import chain
from typing import Dict, Iterable, Iterator, NamedTuple, Set, Tuple

import numpy as np

from gluon_amp.base.formats import FORMATS
from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.parameters import dtype_of
from gluon_amp.casting.statistics import arrays_of
from gluon_amp.casting.tracing import named_blocks
from gluon_amp.inspection.format_effects import Effect, effect_of
from gluon_amp.optimizer.arrays import dense_part
from gluon_amp.optimizer.base import cast

from mxnet import gluon


class Row(NamedTuple):
    """A tensor of a layer at one look."""

    step: int  # the number of steps before this one
    layer: str  # the path of a block, as in 'features.0'; '' is the net itself
    # 'forward', 'data_gradient' or 'weight_gradient': what the layer computed, which is its output,
    # the gradient of its data, or that of a parameter
    direction: str
    tensor: str  # 'output', 'data' or the name of the parameter in its block
    # The dtype it was computed in. A float32 buffer can hold a gradient computed in float16.
    dtype: str
    size: int  # number of elements: of all devices for a parameter, else of the first one
    largest: float  # largest magnitude; inf or NaN after an overflow
    zero: float  # share of the elements that are exactly 0
    loss_scale: float  # that gradients are multiplied by; 1 in the forward direction
    formats: Dict[str, Effect]  # by the name of a format


Place = Tuple[int, str, str, str, str, int]  # the first fields of a row


def weight_gradients(
    net: gluon.Block, formats: Iterable[str], loss_scale: float = 1.0, step: int = 0
) -> Iterator[Tuple[gluon.Parameter, Row]]:
    """Yield each trained parameter of a net with the row of its gradient buffers."""
    places = {
        parameter.name: (path, name)
        for path, block in reversed(list(named_blocks(net)))  # the first of shared ones stays
        for name, parameter in block._reg_params.items()
    }
    computed_in_float16 = _read_in_float16(net)
    for parameter in net.collect_params().values():
        if parameter.grad_req == "null" or not arrays_of([parameter]):
            continue
        gradients = parameter.list_grad()
        # Rows that a row_sparse gradient does not hold are zeros. numpy is slow with float16.
        parts = map(dense_part, gradients)
        wide = (cast(array, np.promote_types(array.dtype, "float32")) for array in parts)
        values = np.concatenate([array.asnumpy().ravel() for array in wide])
        size = sum(int(np.prod(array.shape)) for array in gradients)
        float16 = parameter.name in computed_in_float16 or dtype_of(parameter) == "float16"
        layer, tensor = places.get(parameter.name, ("", parameter.name))
        dtype = "float16" if float16 else "float32"
        place = (step, layer, "weight_gradient", tensor, dtype, size)
        yield parameter, row_of(place, values, size, loss_scale, formats)


def row_of(
    place: Place, values: np.ndarray, size: int, loss_scale: float, formats: Iterable[str]
) -> Row:
    """Return a row; elements of `size` that `values` does not hold are zeros."""
    largest = float(np.abs(values).max(initial=0))
    zero = 1 - int(np.count_nonzero(values)) / max(size, 1)
    effects = {name: effect_of(values, FORMATS[name]) for name in formats}
    return Row(*place, largest, zero, loss_scale, effects)


def _read_in_float16(net: gluon.Block) -> Set[str]:
    """Return the names of the parameters that an operator reads, and so differentiates, in float16.

    A norm reads its parameters in float32, whatever it computes in.
    """
    bindings = filter(None, (binding_of(block) for _, block in named_blocks(net)))
    nodes = chain.from_iterable(binding.nodes or () for binding in bindings)
    read = (n.params for n in nodes if n.dtype == "float16" and n.decision.kind != "norm")
    return set(chain.from_iterable(read))
