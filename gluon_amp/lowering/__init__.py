"""From a cast graph to one that the device at hand can run.

A GPU has float16 kernels. MXNet's CPU kernels have no float16 matrix products, so there float16 is
emulated (`float16_emulation`). bfloat16 runs natively on a CPU (oneDNN), and only there. On both,
gradients have to be added correctly where the user asks for it (`added_gradients`).
"""

from typing import Dict, FrozenSet

from gluon_amp.lowering import added_gradients, float16_emulation, frozen_weights, onednn
from gluon_amp.policy.graph import ACCUMULATE_ATTR

import mxnet as mx


def lower(
    symbol: mx.sym.Symbol,
    dtypes: Dict[str, object],
    device_type: str,
    frozen: FrozenSet[str] = frozenset(),
) -> mx.sym.Symbol:
    """Return a symbol with the same inputs and outputs that runs on a device of `device_type`.

    Parameters
    ----------
    symbol : Symbol
        A graph as `graph.apply` returns it.
    dtypes : dict of str to dtype
        Dtypes of all its variables, as they are fed.
    device_type : {'cpu', 'cpu_pinned', 'cpu_shared', 'gpu'}
    frozen : frozenset of str
        Names of the variables that get no gradient, where the graph is used for training.

    Raises
    ------
    MXNetError
        The dtypes contradict each other.
    ValueError
        Float16 sums asked for on a GPU.
    """
    if device_type == "gpu":
        if any(ACCUMULATE_ATTR in attrs for attrs in symbol.attr_dict().values()):
            raise ValueError(
                "accumulate=float16 is for the emulation on a CPU, since on a GPU the kernel "
                "decides, as amp.accumulation_dtype(ctx) tells: leave it out of the policy."
            )
    else:
        symbol = onednn.settle(float16_emulation.emulate(symbol, dtypes), dtypes)
        symbol = frozen_weights.separate_biases(symbol, dtypes, frozen)
    return added_gradients.separate(symbol, dtypes, device_type)
