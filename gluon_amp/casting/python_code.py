"""A cast block whose Python code runs as it is, because it has no graph.

Its children are cast, and their outputs are in the policy's output dtype. So its own code computes
in that dtype: its parameters are cast to it, and float16 data too.
"""

from gluon_amp.base.dtypes import dtype_name
from gluon_amp.casting.arguments import arrays_in, map_arrays

import mxnet as mx
from mxnet.gluon import HybridBlock


def run_as_python(block: HybridBlock, args: tuple, dtype: str):
    """Call `hybrid_forward` on arrays, as Gluon does if a net is not hybridized."""
    context = next(arrays_in(args)).context

    def in_dtype(array):
        name = dtype_name(array.dtype)
        return array.astype(dtype) if "float" in name and name != dtype else array

    params = {name: in_dtype(param.data(context)) for name, param in block._reg_params.items()}
    return block.hybrid_forward(mx.nd, *map_arrays(args, in_dtype), **params)
