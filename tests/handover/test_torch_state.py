"""A net's parameters as the state of a PyTorch module: small nets, each with a trap."""

import sys
import warnings

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.messages import UsageError
from gluon_amp.training.networks.language_model import LanguageModel
from tests.handover.pytorch import (
    Module,
    Net,
    loaded,
    randomized,
    relative_difference,
    torch,
)

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

T = torch.nn
FAR = 1e-5  # of float32's rounding, relative to the largest output


def normal(*shape):
    return mx.nd.array(np.random.RandomState(1).normal(size=shape))


def sequential(*layers, data=None):
    net = nn.HybridSequential()
    net.add(*layers)
    net.initialize(mx.init.Normal(0.3))
    if data is not None:
        net(data)
    return randomized(net)


def ready(net, *data):
    net.initialize(mx.init.Normal(0.3))
    net(*data)
    return randomized(net)


def assert_handed_over(net, module, *data, far=FAR):
    loaded(net, module, *data)
    assert relative_difference(net, module, *data) < far


# ---------------------------------------------------------------------------- layers


def test_layers_of_every_kind_with_their_conventions():
    data = normal(2, 3, 6, 6)
    pairs = [
        (nn.Conv2D(8, 3, padding=1), T.Conv2d(3, 8, 3, padding=1)),
        (nn.BatchNorm(epsilon=0.01, momentum=0.7), T.BatchNorm2d(8)),
        (nn.Activation("relu"), T.ReLU()),
        (nn.Conv2D(8, 3, padding=1, groups=4, use_bias=False), T.Conv2d(8, 8, 3, 1, 1, 1, 4)),
        (nn.GroupNorm(4), T.GroupNorm(4, 8)),
        (nn.PReLU(), T.PReLU()),
        (
            nn.Conv2DTranspose(6, 2, 2, groups=2, in_channels=8),
            T.ConvTranspose2d(8, 6, 2, 2, groups=2),
        ),
        (nn.InstanceNorm(epsilon=0.02), T.InstanceNorm2d(6, affine=True)),
        (nn.BatchNorm(scale=False), T.BatchNorm2d(6)),
        (nn.Flatten(), T.Flatten()),
        (nn.Dense(7), T.Linear(6 * 12 * 12, 7)),
        (nn.LayerNorm(epsilon=0.03), T.LayerNorm(7)),
        (nn.Dense(5, use_bias=False), T.Linear(7, 5)),
    ]
    net = sequential(*(layer for layer, _ in pairs), data=data)
    module = T.Sequential(*(layer for _, layer in pairs))
    module.train()
    module[1].num_batches_tracked += 3
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    drawn, fast = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    state = amp.torch_state_dict(net, module, data)
    # Nothing of the module changes but what a state does not hold
    assert module.training and torch.equal(torch.get_rng_state(), drawn)
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    norms = [module[k] for k in (1, 4, 7, 8, 11)]
    assert [norm.eps for norm in norms] == [0.01, 1e-5, 0.02, 1e-5, 0.03]
    assert (module[1].momentum, module[8].momentum) == (0.3, 0.1)
    assert {name: array.shape for name, array in state.items()} == {
        name: tuple(tensor.shape) for name, tensor in before.items()
    }
    assert (state["8.weight"] == 1).all() and (state["3.bias"] == 0).all()
    assert state["1.num_batches_tracked"] == 0
    np.testing.assert_array_equal(state["1.running_var"], net[1].running_var.data().asnumpy())
    assert_handed_over(net, module, data)


def test_long_sums_round_more():
    """MXNet's mean over 512 × 512 pixels is off by 2.6e-4, and no weight is read by it."""
    data = normal(1, 3, 512, 512) + 1
    net = sequential(
        nn.Conv2D(4, 3), nn.InstanceNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D(),
        nn.Dense(8), data=data,
    )  # fmt: skip
    module = T.Sequential(
        T.Conv2d(3, 4, 3), T.InstanceNorm2d(4, affine=True), T.ReLU(), T.AdaptiveAvgPool2d(1),
        T.Flatten(), T.Linear(4, 8),
    )  # fmt: skip
    assert_handed_over(net, module, data, far=1e-3)


def test_masters_are_handed_over():
    net = amp.cast(sequential(nn.Dense(3, in_units=2)), "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 2**-13}, loss_scale=1)
    data = mx.nd.array([[1.0, 2.0]])
    with mx.autograd.record():
        loss = net(data)
    trainer.backward(loss)
    trainer.step(1)
    state = amp.torch_state_dict(net, T.Linear(2, 3), normal(4, 2))
    (master,) = [m.asnumpy() for name, m in trainer.master_params().items() if "weight" in name]
    np.testing.assert_array_equal(state["weight"], master)
    assert (master != master.astype(np.float16)).any()


def test_a_dense_layer_is_a_pointwise_convolution_and_one_written_with_dot():
    data = normal(2, 5, 1, 1)
    net = sequential(nn.Conv2D(4, 1), nn.Flatten(), data=data)
    assert_handed_over(net, T.Sequential(T.Flatten(), T.Linear(5, 4)), data)
    data = normal(2, 5)
    net = ready(Net(lambda F, self, x, weight: F.dot(x, weight), weight=(5, 4)), data)
    rows, columns, bias = (T.Parameter(torch.ones(shape)) for shape in ((4, 5), (5, 4), (4,)))
    for module in (
        T.Linear(5, 4),
        Module(lambda m, x: x @ m.weight, weight=columns),
        Module(lambda m, x: torch.addmm(m.bias, x, m.weight), weight=columns, bias=bias),
        Module(lambda m, x: x @ m.weight.t(), weight=rows),
    ):
        assert_handed_over(net, module, data)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2)])
def test_columns_of_a_dense_layer_follow_the_layout_before_flatten(order):
    data = normal(3, 4, 5, 6)
    net = sequential(nn.Dense(7), nn.Dense(2), data=data)
    layers = {"one": T.Linear(120, 7), "two": T.Linear(7, 2)}
    module = Module(lambda m, x: m.two(m.one(x.permute(order).flatten(1))), **layers)
    assert_handed_over(net, module, data)


# ---------------------------------------------------------------------------- text


def test_the_language_model_of_the_recipe():
    """With its states as inputs and outputs, and with time first."""
    net = LanguageModel(11, "lstm", 6, 8, 2)
    net.initialize(mx.init.Normal(0.3))
    randomized(net)
    tokens = mx.nd.array(np.random.RandomState(0).randint(0, 11, (3, 7)))
    states = [normal(2, 3, 8), normal(2, 3, 8) * 0.5]
    inputs = [torch.from_numpy(x.asnumpy()) for x in states]
    batch = torch.from_numpy(tokens.asnumpy()).long()

    def forward(m, tokens, hidden, cell):
        out, (hidden, cell) = m.lstm(m.embedding(tokens), (hidden, cell))
        return m.decoder(out), hidden, cell

    for batch_first, time_first in ((True, batch), (False, batch.t().contiguous())):
        module = Module(
            forward,
            embedding=T.Embedding(11, 6),
            lstm=T.LSTM(6, 8, 2, batch_first=batch_first),
            decoder=T.Linear(8, 11),
        )
        arguments = time_first, *inputs
        options = {} if batch_first else {"module_inputs": arguments}
        loaded(net, module, tokens, *states, **options)
        with torch.no_grad():
            out, *theirs = module(*arguments)
        theirs = [out if batch_first else out.swapaxes(0, 1), *theirs]
        for own, other in zip(net(tokens, *states), theirs):
            np.testing.assert_allclose(own.asnumpy(), other.numpy(), atol=1e-6)


@pytest.mark.parametrize("kind, options", [
    ("GRU", {}), ("LSTM", {"bidirectional": True}), ("RNN", {"activation": "tanh"}),
])  # fmt: skip
def test_fused_recurrent_layers(kind, options):
    net = getattr(gluon.rnn, kind)(5, 2, input_size=4, layout="NTC", **options)
    options = {k: v for k, v in options.items() if k == "bidirectional"}
    layer = getattr(T, kind)(4, 5, 2, batch_first=True, **options)
    data = normal(3, 6, 4)
    assert_handed_over(ready(net, data), Module(lambda m, x: m.layer(x)[0], layer=layer), data)


def test_cells_that_are_called_in_a_loop():
    def unrolled(F, self, x):
        return self.cell.unroll(3, x, layout="NTC", merge_outputs=True)[0]

    data = normal(2, 3, 4)
    net = ready(Net(unrolled, cell=gluon.rnn.LSTMCell(5, input_size=4)), data)

    def forward(m, x):
        h, c, out = torch.zeros(2, 5), torch.zeros(2, 5), []
        for t in range(3):
            h, c = m.cell(x[:, t], (h, c))
            out.append(h)
        return torch.stack(out, 1)

    assert_handed_over(net, Module(forward, cell=T.LSTMCell(4, 5)), data)


def attention(F, q, k, v):
    return F.batch_dot(F.softmax(F.batch_dot(q, k, transpose_b=True)), v)


def torch_attention(q, k, v):
    return (q @ k.transpose(1, 2)).softmax(-1) @ v


def dense(units):
    return nn.Dense(units, flatten=False)


def projections(units=6, names="qkvo"):
    return {name: dense(units) for name in names}


def linears(names="qkvo"):
    return {name: T.Linear(6, 6) for name in names}


@pytest.mark.parametrize("order", ["qkv", "vqk"])
def test_projections_that_run_in_another_order(order):
    """All three read the same input: only what follows tells them apart."""
    data = normal(2, 5, 6)
    net = Net(lambda F, s, x: s.o(attention(F, s.q(x), s.k(x), s.v(x))), **projections())
    ready(net, data)

    def forward(m, x):
        made = {name: getattr(m, name)(x) for name in order}
        return m.o(torch_attention(made["q"], made["k"], made["v"]))

    state = amp.torch_state_dict(net, Module(forward, **linears()), data)
    for name in "qkvo":
        weight = getattr(net, name).weight.data().asnumpy()
        np.testing.assert_array_equal(state[f"{name}.weight"], weight)


def test_the_search_goes_on_while_it_makes_progress(monkeypatch):
    """Each of 6 blocks needs up to 5 more runs, and a search that is stuck ends."""
    from gluon_amp.handover import torch_match

    monkeypatch.setattr(torch_match, "ATTEMPTS", 6)
    data = normal(2, 5, 6)

    def block(F, s, x):
        return x + s.o(attention(F, s.q(x), s.k(x), s.v(x)))

    net = sequential(*(Net(block, **projections()) for _ in range(6)), data=data)

    def forward(m, x):
        v, q, k = m.v(x), m.q(x), m.k(x)
        return x + m.o(torch_attention(q, k, v))

    module = T.Sequential(*(Module(forward, **linears()) for _ in range(6)))
    assert_handed_over(net, module, data)
    module.append(T.Tanh())
    with pytest.raises(UsageError, match="output 0 differs"):
        amp.torch_state_dict(net, module, data)


def test_multi_head_attention_and_packed_projections():
    data, memory = normal(2, 5, 6), normal(2, 3, 6) * 0.5

    def net_of(factor, **layers):
        def forward(F, s, x, y):
            return s.o(attention(F, s.q(x) / factor, s.k(y), s.v(y)))

        return Net(forward, **layers)

    heads = T.MultiheadAttention(6, 1, batch_first=True)
    module = Module(lambda m, x, y: m.heads(x, y, y, need_weights=False)[0], heads=heads)
    net = ready(net_of(1, **projections()), data, memory)
    with pytest.raises(UsageError, match="out_proj|output"):  # its scores are divided by sqrt(6)
        amp.torch_state_dict(net, module, data, memory)
    net = ready(net_of(6**0.5, **projections()), data, memory)
    state = amp.torch_state_dict(net, module, data, memory)
    packed = np.concatenate([getattr(net, n).weight.data().asnumpy() for n in "qkv"])
    np.testing.assert_array_equal(state["heads.in_proj_weight"], packed)

    def of_packed(F, s, x):
        q, k, v = F.split(s.qkv(x), 3, axis=2)
        return s.o(attention(F, q / 6**0.5, k, v))

    # Packed here as well, and packed there alone
    own = Module(lambda m, x: m.heads(x, x, x, need_weights=False)[0], heads=heads)
    net = ready(Net(of_packed, qkv=dense(18), o=dense(6)), data)
    assert_handed_over(net, own, data)

    def theirs(m, x):
        q, k, v = m.qkv(x).split(6, 2)
        return m.o(torch_attention(q / 6**0.5, k, v))

    apart = net_of(6**0.5, **projections())
    net = ready(Net(lambda F, s, x: s.apart(x, x), apart=apart), data)
    assert_handed_over(net, Module(theirs, qkv=T.Linear(6, 18), o=T.Linear(6, 6)), data)


# ---------------------------------------------------------------------------- parameters apart


def test_parameters_of_no_layer(monkeypatch):
    """A class token and positions, which come before weights of layers with the same shapes."""
    from gluon_amp.handover import torch_match

    monkeypatch.setattr(torch_match, "ATTEMPTS", 1)

    def forward(F, s, x, token, positions):
        x = s.first(x)
        x = F.concat(F.broadcast_like(token, F.slice_axis(x, axis=1, begin=0, end=1)), x, dim=1)
        return s.out(F.broadcast_add(x, positions))

    data = normal(2, 4, 5)
    net = Net(forward, token=(1, 1, 6), positions=(1, 5, 6), first=dense(6), out=dense(3))
    parameters = {"positions": torch.zeros(5, 6), "token": torch.zeros(6)}
    module = Module(
        lambda m, x: m.out(torch.cat([m.token.expand(2, 1, 6), m.first(x)], 1) + m.positions),
        **{name: T.Parameter(value) for name, value in parameters.items()},
        first=T.Linear(5, 6),
        out=T.Linear(6, 3),
    )
    assert_handed_over(ready(net, data), module, data)


def test_positions_that_are_looked_up_once_for_each_example():
    data = normal(3, 5, 6)

    def forward(F, s, x):
        steps = F.contrib.arange_like(x, axis=1)
        return s.out(F.broadcast_add(x, F.expand_dims(s.positions(steps), axis=0)))

    net = ready(Net(forward, positions=nn.Embedding(9, 6), out=dense(3)), data)
    module = Module(
        lambda m, x: m.out(x + m.positions(torch.arange(5).expand(3, 5))),
        positions=T.Embedding(9, 6),
        out=T.Linear(6, 3),
    )
    assert_handed_over(net, module, data)


def test_normalized_weights_and_a_learned_scale():
    """The head of ArcFace, and two scales that only the outputs tell apart."""

    def forward(F, s, x, weight, first, second):
        x = s.prelu(s.body(x))
        cosine = F.FullyConnected(
            F.L2Normalization(x), F.L2Normalization(weight), no_bias=True, num_hidden=4
        )
        return F.broadcast_mul(cosine, first) - F.broadcast_mul(cosine * cosine, second)

    data = normal(3, 5)
    scales = {"first": (1,), "second": (1,)}
    net = Net(forward, body=nn.Dense(6), prelu=nn.PReLU(), weight=(4, 6), **scales)
    ready(net, data)
    net.first.set_data(mx.nd.array([3.0]))
    net.second.set_data(mx.nd.array([2.0]))

    def theirs(m, x):
        x = m.prelu(m.body(x))
        normalize = T.functional.normalize
        cosine = T.functional.linear(normalize(x), normalize(m.weight))
        return -(cosine**2 * m.second) + cosine * m.first

    values = {"weight": torch.randn(4, 6), "first": torch.ones(1), "second": torch.ones(1)}
    parameters = {name: T.Parameter(value) for name, value in values.items()}
    module = Module(theirs, body=T.Linear(5, 6), prelu=T.PReLU(), **parameters)
    state = amp.torch_state_dict(net, module, data)
    assert (state["first"], state["second"]) == ([3.0], [2.0])


def test_tied_weights():
    tokens = mx.nd.array([[0, 3, 6, 2]])

    def net(tied):
        embedding = nn.Embedding(7, 5)
        params = {"params": embedding.params} if tied else {}
        decoder = nn.Dense(7, flatten=False, in_units=5, **params)
        layers = {"embedding": embedding, "body": dense(5), "decoder": decoder}
        return ready(Net(lambda F, s, x: s.decoder(s.body(s.embedding(x))), **layers), tokens)

    def module(tied):
        layers = {"embedding": T.Embedding(7, 5), "body": T.Linear(5, 5), "decoder": T.Linear(5, 7)}
        if tied:
            layers["decoder"].weight = layers["embedding"].weight
        return Module(lambda m, x: m.decoder(m.body(m.embedding(x))), **layers)

    for tied in (True, False):
        state = amp.torch_state_dict(net(True), module(tied), tokens)
        np.testing.assert_array_equal(state["decoder.weight"], state["embedding.weight"])
    with pytest.raises(UsageError, match=r"decoder.*not the one that the module's layers share"):
        amp.torch_state_dict(net(False), module(True), tokens)


# ---------------------------------------------------------------------------- arrays, inputs


def test_a_net_of_another_kind_of_arrays_and_a_module_of_mxnet():
    data = mx.nd.array(np.random.RandomState(0).normal(size=(2, 5)))
    module = T.Linear(5, 3)
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = nn.Dense(3)
        net.initialize(mx.init.Normal(0.3))
        net(data.as_np_ndarray())
        state = amp.torch_state_dict(net, module, data.as_np_ndarray())
        np.testing.assert_array_equal(state["weight"], net.weight.data().asnumpy())
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    bound = mx.mod.Module(symbol, label_names=None)
    bound.bind([("data", (2, 5))], for_training=False)
    bound.init_params(mx.init.Normal(0.3))
    state = amp.torch_state_dict(bound, module, data)
    np.testing.assert_array_equal(state["weight"], bound.get_params()[0]["fc_weight"].asnumpy())


def test_inputs_that_do_not_tell_layers_apart():
    """For zeros all pixels are equal, and height and width may be confused."""
    data = mx.nd.zeros((2, 3, 6, 6))
    net = sequential(nn.Conv2D(4, 3), nn.Dense(5), data=data)

    swapped = Module(
        lambda m, x: m.two(m.one(x).permute((0, 3, 2, 1)).flatten(1)),
        one=T.Conv2d(3, 4, 3),
        two=T.Linear(64, 5),
    )
    with pytest.raises(UsageError, match="for the given inputs alone .*pass random numbers"):
        amp.torch_state_dict(net, swapped, data)
    net = ready(Net(lambda F, s, x: s.a(x) * 2 + s.b(x) * 0, a=dense(3), b=dense(3)), data)
    net.b.bias.set_data(net.a.bias.data())
    twin = Module(lambda m, x: m.b(x) * 0 + m.a(x) * 2, a=T.Linear(6, 3), b=T.Linear(6, 3))
    with pytest.raises(UsageError, match="the module's b .* fits the net's a .*net's b .* alike"):
        amp.torch_state_dict(net, twin, data)
    loaded(net, twin, normal(2, 3, 6, 6))


def test_norms_without_parameters():
    data = normal(2, 3, 6, 6)
    net = nn.HybridSequential()
    net.add(nn.InstanceNorm(center=False), nn.Conv2D(4, 3), nn.LayerNorm(center=False, scale=False))
    net.initialize(mx.init.Normal(0.3))
    norm = T.LayerNorm(4, elementwise_affine=False)
    module = T.Sequential(T.InstanceNorm2d(3), T.Conv2d(3, 4, 3), norm)
    assert_handed_over(net, module, data)
    net.add(nn.BatchNorm())
    net[3].initialize()
    with pytest.raises(UsageError, match="no place for the net's .*batchnorm"):
        amp.torch_state_dict(net, module, data)
    net[2].gamma.set_data(mx.nd.full(4, 2))
    with pytest.raises(UsageError, match="no place for the net's .*gamma"):
        amp.torch_state_dict(net, module, data)


# ---------------------------------------------------------------------------- refusals


def conv_net():
    """A batch, a net, and the module of the same layers."""
    data = normal(2, 3, 8, 8)
    module = T.Sequential(T.Conv2d(3, 4, 3), T.Flatten(), T.Linear(144, 2))
    return data, sequential(nn.Conv2D(4, 3), nn.Dense(2), data=data), module


@pytest.mark.parametrize("layers, sentence", [
    ([T.Conv2d(3, 4, 3, dilation=2), T.Flatten(), T.LazyLinear(2)],
     r"the module's 0 .*the net's 0 \(Convolution\).*stride"),
    ([T.Conv2d(3, 5, 3), T.Flatten(), T.Linear(180, 2)],
     r"no layer of the net fits the module's 0 .*\(5, 3, 3, 3\)\); the nearest is the net's 0"),
    ([T.Conv2d(3, 4, 3), T.ReLU(), T.Flatten(), T.Linear(144, 2)],
     r"fits the module's 3 .*the nearest is the net's 1 .*input differs by"),
    ([T.Conv2d(3, 4, 3), T.Flatten(), T.Linear(144, 2), T.ReLU()], "output 0 differs by"),
    ([T.Conv2d(3, 4, 3, bias=False), T.Flatten(), T.Linear(144, 2)], "whose bias is not 0"),
    ([T.Conv2d(3, 4, 3)], "no place for the net's .*dense"),
    ([T.Conv2d(3, 4, 3), T.Flatten(), T.Linear(144, 2), T.LayerNorm(2)], "none of its layers"),
])  # fmt: skip
def test_another_architecture_is_a_sentence_with_both_names(layers, sentence):
    data, net, _ = conv_net()
    module = T.Sequential(*layers)
    if "stride" in sentence:
        module(torch.zeros(2, 3, 8, 8))
    with pytest.raises(UsageError, match=sentence):
        amp.torch_state_dict(net, module, data)


def test_layers_that_do_not_run_keep_their_values():
    data, net, module = conv_net()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        amp.torch_state_dict(net, module, data)
    module = Module(lambda m, x: m.body(x), body=module, aux=T.Linear(3, 3))
    with pytest.warns(UserWarning, match=r"aux\.weight, aux\.bias .* keep"):
        state = amp.torch_state_dict(net, module, data)
    np.testing.assert_array_equal(state["aux.weight"], module.aux.weight.detach().numpy())


def test_bad_input():
    data, net, module = conv_net()
    fresh = nn.Dense(2)
    for error, arguments, sentence in [
        (TypeError, (net, net, data), "got a HybridSequential, expected a torch.nn.Module"),
        (TypeError, (module, module, data), "expected a HybridBlock"),
        (TypeError, (net, module), "needs the net's inputs"),
        (TypeError, (net, module, data.asnumpy()), "as NDArrays"),
        (TypeError, (net, torch.jit.script(module), data), "which is not compiled"),
        (UsageError, (net, module, data * np.nan), "has no finite value"),
        (UsageError, (fresh, module, data), "initialize"),
        (UsageError, (net, module, normal(2, 4, 8, 8)), "does not accept these inputs"),
        (UsageError, (net, T.Sequential(*module[:2], T.LazyLinear(2)), data), "no shape yet"),
        (UsageError, (net, T.Linear(5, 2), data), "module does not accept these inputs"),
    ]:
        with pytest.raises(error, match=sentence):
            amp.torch_state_dict(*arguments)
    with pytest.raises(TypeError, match="a tuple"):
        amp.torch_state_dict(net, module, data, module_inputs=torch.zeros(1))
    with pytest.raises(UsageError, match=r"torch\.float64 on cpu: pass module\.float"):
        amp.torch_state_dict(net, module.double(), data)


def test_without_pytorch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for function in (amp.torch_state_dict, amp.torch_training_state):
        with pytest.raises(UsageError, match="needs PyTorch: run `pip install torch`"):
            function(nn.Dense(1), None, normal(1, 1), None)
