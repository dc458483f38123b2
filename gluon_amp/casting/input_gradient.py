"""`input_gradient`: the gradient of a net's output by its input, to be differentiated once more."""

import weakref
from typing import Dict, MutableMapping

from gluon_amp.casting.arguments import arrays_in, constants_of
from gluon_amp.casting.binding import bind, binding_of
from gluon_amp.casting.sharing import remove_user
from gluon_amp.casting.tracing import HybridBlock, trace
from gluon_amp.graph.derivative import derivative

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import SymbolBlock

# The derivatives of nets, as blocks, by circumstances
_derivatives: MutableMapping[HybridBlock, Dict[tuple, SymbolBlock]] = weakref.WeakKeyDictionary()


def input_gradient(net: HybridBlock, x: mx.nd.NDArray, *args: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return the gradient of the sum of a net's outputs by its first input, for gradient penalties.

    In place of `autograd.grad(net(x), [x], create_graph=True)[0]`, which MXNet 1.9.1 refuses for a
    hybridized net, and for most operators; through two Dense layers its second derivatives are
    wrong. Here the gradient is computed by a graph of its own, in the policy's dtypes, so that a
    single backward pass leads from it to the parameters.

    Parameters
    ----------
    net : HybridBlock
        A net, cast or not. Its operators: dense and convolutional layers, activations, LayerNorm,
        average pooling over an image or separate windows, reshaping, sums and elementwise
        arithmetic. BatchNorm mixes the images of a batch, so WGAN-GP does without it.
    x : NDArray
        The input, float32 or float16.
    *args
        Further arguments of the net.

    Returns
    -------
    NDArray, shape and dtype of a float32 `x`
        Not multiplied by a loss scale; `trainer.backward(loss)` scales the loss that it is part of.

    Raises
    ------
    TypeError
        `net` is no HybridBlock.
    ValueError
        An operator of the net has no rule, or the net cannot be traced.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = mx.gluon.nn.Dense(1, in_units=2, weight_initializer='ones')
    >>> net.initialize()
    >>> amp.input_gradient(amp.cast(net, 'float16'), mx.nd.zeros((1, 2))).asnumpy()
    array([[1., 1.]], dtype=float32)
    """
    if not isinstance(net, HybridBlock):
        raise TypeError(f"input_gradient() got a {type(net).__name__}, expected a HybridBlock.")
    inputs = (x, *args)
    binding = binding_of(net)
    policy = binding.policy if binding else None
    shapes = tuple(array.shape for array in arrays_in(inputs))
    key = policy, autograd.is_training(), shapes, constants_of(inputs)
    blocks = _derivatives.setdefault(net, {})
    if key not in blocks:
        blocks[key] = _differentiated(net, inputs)
    return blocks[key](*arrays_in(inputs))


def _differentiated(net: HybridBlock, inputs: tuple) -> SymbolBlock:
    """Return a block that shares the parameters of a net and computes its derivative."""
    binding = binding_of(net)
    path = binding.path if binding else ""
    traced = trace(net, path, inputs, may_freeze=False)
    shapes = {s.name: array.shape for s, array in zip(traced.inputs, arrays_in(inputs))}
    symbol = derivative(traced.symbol, traced.inputs[0].name, shapes)
    variables = [  # with dtypes, as SymbolBlock warns otherwise
        mx.sym.var(s.name, dtype=array.dtype) for s, array in zip(traced.inputs, arrays_in(inputs))
    ]
    block = SymbolBlock(symbol, variables, params=net.collect_params())
    if binding:
        bind(block, path, binding.policy, binding.ends)
        remove_user(block)  # the parameters are the net's: they change with its cast
    return block
