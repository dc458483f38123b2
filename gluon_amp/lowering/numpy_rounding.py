"""Rounding to any format as an operator in numpy, for the emulation without the C++ library.

MXNet's own `Cast` rounds to float16 alone. Copies to numpy and back make this operator slow.
"""

from gluon_amp.formats import FORMATS, rounded_array

import mxnet as mx

OPERATOR = "gluon_amp_round"


class _Round(mx.operator.CustomOp):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.format = FORMATS[name]

    def forward(self, is_train, req, in_data, out_data, aux):
        self._assign_rounded(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self._assign_rounded(in_grad[0], req[0], out_grad[0])

    def _assign_rounded(self, target, req, values) -> None:
        self.assign(target, req, mx.nd.array(rounded_array(values.asnumpy(), self.format)))


@mx.operator.register(OPERATOR)
class _RoundProp(mx.operator.CustomOpProp):
    """The operator of one input that rounds it, and its gradient, to the format of this name."""

    def __init__(self, format: str) -> None:
        super().__init__(need_top_grad=True)
        self.format = format

    def infer_shape(self, in_shape):
        return in_shape, in_shape, []

    def create_operator(self, ctx, shapes, dtypes):
        return _Round(self.format)
