"""What no call of one operator shows: loops, code of users, copies, and cast nets."""

from typing import Callable, Dict, Iterator, List, Tuple

import gluon_amp as amp
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.casting.binding import binding_of
from gluon_amp.graph import to_json
from gluon_amp.lowering import lower

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn
from mxnet.gluon.contrib.nn import HybridConcurrent, Identity

X = mx.sym.var("x")
POLICIES = ("float16", "mixed_float16")  # those with a loss scale


class Square(autograd.Function):
    """A user's own function."""

    def forward(self, x):
        self.save_for_backward(x)
        return x * x

    def backward(self, head):
        return 2 * self.saved_tensors[0] * head


class SquareOp(mx.operator.CustomOp):
    """A user's own operator."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], 2 * in_data[0] * out_grad[0])


@mx.operator.register("square_op")
class SquareProp(mx.operator.CustomOpProp):
    """The properties of `SquareOp`, with the defaults."""

    def create_operator(self, ctx, shapes, dtypes):
        return SquareOp()


ONES = mx.sym.ones((3,))
FOREACH = mx.sym.contrib.foreach(lambda x, state: (x * state, state * 2), X, ONES)[0]
LOOP = mx.sym.contrib.while_loop(
    lambda i, x: i.sum() < 3, lambda i, x: (x, [i + 1, x * 2]), [mx.sym.zeros((1,)), X], 3
)
COND = mx.sym.contrib.cond(X.sum() > 0, lambda: X * 2, lambda: X * 3)

PROGRAMS: Dict[str, Callable[[nd.NDArray], nd.NDArray]] = {
    "Custom": lambda x: nd.Custom(x, op_type="square_op"),
    "_CustomFunction": lambda x: Square()(x),
    "_copyto": lambda x: x.as_in_context(mx.cpu(1)),
    "_foreach": nd.CachedOp(FOREACH),
    "_while_loop": nd.CachedOp(LOOP[1][1]),
    "_cond": nd.CachedOp(COND),
}


def _joined() -> HybridConcurrent:
    net = HybridConcurrent(axis=1)
    net.add(nn.Conv2D(16, 1, activation="relu"), Identity())
    return net


def _sequential(*layers: gluon.Block) -> nn.HybridSequential:
    net = nn.HybridSequential()
    net.add(*layers)
    return net


class Attention(gluon.HybridBlock):
    """Norm, products of batches and softmax, as in a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(), nn.Dense(24, flatten=False)

    def hybrid_forward(self, F, x):
        q, k, v = F.split(self.project(self.norm(x)), 3, axis=-1)
        return F.batch_dot(F.softmax(F.batch_dot(q, k, transpose_b=True)), v)


IMAGE, SEQUENCE = (2, 8, 8, 8), (4, 2, 8)
NETS: Dict[str, Tuple[Callable[[], gluon.HybridBlock], tuple]] = {
    "convolutions": (
        lambda: _sequential(
            *(nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D()),
            *(nn.Conv2D(16, 3, groups=16), nn.BatchNorm(), nn.PReLU(), nn.GlobalAvgPool2D()),
            nn.Dense(4),
        ),
        IMAGE,
    ),
    "transposed": (lambda: _sequential(nn.Conv2DTranspose(8, 3), nn.LeakyReLU(0.1)), IMAGE),
    "three dimensions": (lambda: _sequential(nn.Conv3D(8, 2), nn.AvgPool3D(2)), (2, 4, 6, 6, 6)),
    "one dimension": (lambda: _sequential(nn.Conv1D(8, 2), nn.ELU(), nn.Conv1D(4, 2)), (2, 4, 8)),
    "dense": (lambda: _sequential(nn.Dense(8), nn.GELU(), nn.Dropout(0.5), nn.Dense(4)), (8, 4)),
    "swish": (lambda: _sequential(nn.Dense(8), nn.Swish(), nn.SELU(), nn.Dense(4)), (8, 4)),
    "group norm": (lambda: _sequential(nn.Conv2D(8, 1), nn.GroupNorm(2), nn.InstanceNorm()), IMAGE),
    "joined": (lambda: _sequential(nn.Conv2D(16, 1), _joined(), nn.Conv2D(8, 1)), IMAGE),
    "a loss": (
        lambda: _sequential(
            nn.Dense(4), nn.HybridLambda(lambda F, x: F.pick(F.log_softmax(x), F.argmax(x, axis=1)))
        ),
        (8, 4),
    ),
    "attention": (Attention, (2, 3, 8)),
    "lstm": (lambda: rnn.LSTM(4, 2, dropout=0.5), SEQUENCE),
    "gru": (lambda: rnn.GRU(4, bidirectional=True), SEQUENCE),
    "rnn": (lambda: rnn.RNN(4), SEQUENCE),
    "embedding": (lambda: _sequential(nn.Embedding(9, 8), nn.LayerNorm(), nn.Dense(4)), (4, 3)),
}


def net_rows(kind: str) -> Iterator[dict]:
    """Yield for each policy whether the gradients of two passes of a net are equal."""
    make, shape = NETS[kind]
    for policy in POLICIES:
        mx.random.seed(1)
        net, x = make(), nd.random.uniform(0, 1, shape)
        net.initialize(mx.init.Xavier())
        amp.cast(net, policy)
        with autograd.record():
            loss = (net(x) ** 2).sum()
        params = [p for p in net.collect_params().values() if p.grad_req != "null"]
        passes: List[List[bytes]] = []
        for _ in range(2):
            loss.backward(retain_graph=True)
            passes.append([p.grad().asnumpy().tobytes() for p in params])
        _, symbol = binding_of(net).graph
        dtypes = dict.fromkeys(symbol.list_inputs(), "float32")
        dtypes.update({p.name: dtype_name(p.dtype) for p in params})
        nodes = to_json(lower(symbol, dtypes, "cpu", scaled=True))["nodes"]
        own = sorted({node["op"] for node in nodes if "_gluon_amp_" in node["op"]})
        yield {"way": policy, "equal": passes[0] == passes[1], "own": own}
