"""Networks of GluonCV and GluonNLP in PyTorch, each with random weights and statistics."""

import numpy as np
import pytest

import gluon_amp as amp
from tests.handover.pytorch import (
    gluoncv_zoo,
    loaded,
    randomized,
    relative_difference,
    torch,
    torchvision_zoo,
)

import mxnet as mx
from mxnet.gluon import nn

T = torch.nn

BOUND = 1e-4  # of the largest output

# GluonCV's name, torchvision's
PAIRS = {
    "alexnet": "alexnet",
    "densenet121": "densenet121",
    "googlenet": "googlenet",
    "inceptionv3": "inception_v3",
    "mobilenetv2_1.0": "mobilenet_v2",
    "mobilenetv3_large": "mobilenet_v3_large",
    "resnet18_v1b": "resnet18",
    "resnet50_v1b": "resnet50",
    "resnext50_32x4d": "resnext50_32x4d",
    "squeezenet1.0": "squeezenet1_0",
    "vgg11": "vgg11",
    "vgg16_bn": "vgg16_bn",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch_state_dict.*(AuxLogits|aux1)")
@pytest.mark.parametrize("name", PAIRS)
def test_networks_of_gluoncv_in_torchvision(name):
    net = gluoncv_zoo().get_model(name)
    net.initialize(mx.init.Xavier())
    size = 299 if name == "inceptionv3" else 224
    data = mx.nd.random.normal(shape=(2, 3, size, size))
    net(data)
    randomized(net)
    options = {"init_weights": False} if name in ("inceptionv3", "googlenet") else {}
    module = getattr(torchvision_zoo(), PAIRS[name])(weights=None, **options)
    loaded(net, module, data)
    far = relative_difference(net, module, data)
    print(f"{name}: {far:.1e}")
    assert far < BOUND


# ---------------------------------------------------------------------------- BERT

LAYERS, UNITS, HIDDEN, HEADS, WORDS, LENGTH, MASKED = 3, 24, 48, 4, 31, 10, 3


@pytest.fixture(scope="module")
def bert():
    """GluonNLP's BERT, a batch for it, and its outputs."""
    nlp = pytest.importorskip("gluonnlp", reason="GluonNLP is not installed: run `make handover`")
    encoder = nlp.model.BERTEncoder(
        num_layers=LAYERS, units=UNITS, hidden_size=HIDDEN, max_length=LENGTH, num_heads=HEADS
    )
    net = nlp.model.BERTModel(
        encoder, WORDS, token_type_vocab_size=2, units=UNITS, embed_size=UNITS
    )
    net.initialize(mx.init.Normal(0.2))
    random = np.random.RandomState(0)
    batch = [
        random.randint(0, WORDS, (4, LENGTH)),
        random.randint(0, 2, (4, LENGTH)),
        np.array([10, 7, 9, 4]),
        random.randint(0, 4, (4, MASKED)),
    ]
    arrays = [mx.nd.array(values) for values in batch]
    net(*arrays)
    randomized(net)
    return net, arrays, [output.asnumpy() for output in net(*arrays)]


class Layer(T.Module):
    """A layer of BERT, written with linear layers."""

    def __init__(self):
        super().__init__()
        for name in ("value", "query", "key", "proj"):
            setattr(self, name, T.Linear(UNITS, UNITS))
        self.one, self.two = T.Linear(UNITS, HIDDEN), T.Linear(HIDDEN, UNITS)
        self.first, self.second = T.LayerNorm(UNITS), T.LayerNorm(UNITS)

    def forward(self, x, padding):
        def heads(layer):
            return layer(x).unflatten(2, (HEADS, -1)).transpose(1, 2)

        value, key, query = heads(self.value), heads(self.key), heads(self.query)
        scores = query @ key.transpose(2, 3) / (UNITS // HEADS) ** 0.5
        scores = scores.masked_fill(padding[:, None, None], -np.inf)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = self.first(x + self.proj(mixed))
        return self.second(x + self.two(T.functional.gelu(self.one(x))))


class Written(T.Module):
    def __init__(self):
        super().__init__()
        self.layers = T.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x, padding):
        for layer in self.layers:
            x = layer(x, padding)
        return x


class Stock(T.Module):
    def __init__(self):
        super().__init__()
        layer = T.TransformerEncoderLayer(UNITS, HEADS, HIDDEN, activation="gelu", batch_first=True)
        self.encoder = T.TransformerEncoder(layer, LAYERS)

    def forward(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding)


class Bert(T.Module):
    def __init__(self, encoder):
        super().__init__()
        self.words, self.types = T.Embedding(WORDS, UNITS), T.Embedding(2, UNITS)
        self.positions = T.Parameter(torch.zeros(1, LENGTH, UNITS))
        self.norm, self.encoder = T.LayerNorm(UNITS), encoder
        self.pooler, self.classifier = T.Linear(UNITS, UNITS), T.Linear(UNITS, 2)
        self.transform, self.transform_norm = T.Linear(UNITS, UNITS), T.LayerNorm(UNITS)
        self.decoder = T.Linear(UNITS, WORDS)
        self.decoder.weight = self.words.weight

    def forward(self, tokens, types, lengths, masked):
        padding = torch.arange(LENGTH)[None] >= lengths[:, None]
        x = self.norm(self.words(tokens) + self.types(types) + self.positions)
        x = self.encoder(x, padding).masked_fill(padding[..., None], 0)
        pooled = self.pooler(x[:, 0]).tanh()
        chosen = x[torch.arange(len(x))[:, None], masked]
        decoded = self.decoder(self.transform_norm(T.functional.gelu(self.transform(chosen))))
        return x, pooled, self.classifier(pooled), decoded


@pytest.mark.parametrize("encoder", [Written, Stock])
def test_bert_of_gluonnlp_as_a_plain_encoder(bert, encoder):
    net, arrays, outputs = bert
    tensors = tuple(torch.from_numpy(array.asnumpy()).long() for array in arrays)
    module = Bert(encoder())
    loaded(net, module, *arrays, module_inputs=tensors)
    with torch.no_grad():
        theirs = [output.numpy() for output in module(*tensors)]
    far = [np.abs(a - b).max() / np.abs(a).max() for a, b in zip(outputs, theirs)]
    print(f"{encoder.__name__}: {max(far):.1e}")
    assert max(far) < BOUND
    assert module.norm.eps == 1e-12


# ---------------------------------------------------------------------------- U-Net


class Down(nn.HybridBlock):
    """A U-Net: grouped convolutions down, transposed ones up, and connections across."""

    def __init__(self, channels, inner=None):
        super().__init__()
        self.down = nn.Conv2D(channels, 3, padding=1, groups=2 if channels > 8 else 1)
        self.norm, self.slope = nn.BatchNorm(), nn.PReLU()
        self.pool, self.inner = nn.MaxPool2D(2), inner
        self.up = nn.Conv2DTranspose(channels, 2, strides=2)
        self.out = nn.Conv2D(channels, 3, padding=1)

    def hybrid_forward(self, F, x):
        x = self.slope(self.norm(self.down(x)))
        inside = self.pool(x)
        inside = inside if self.inner is None else self.inner(inside)
        return self.out(F.concat(x, self.up(inside), dim=1))


class TorchDown(T.Module):
    def __init__(self, before, channels, inside, inner=None):
        super().__init__()
        groups = 2 if channels > 8 else 1
        self.down = T.Conv2d(before, channels, 3, padding=1, groups=groups)
        self.norm, self.slope = T.BatchNorm2d(channels), T.PReLU()
        self.pool, self.inner = T.MaxPool2d(2), inner or T.Identity()
        self.up = T.ConvTranspose2d(inside, channels, 2, 2)
        self.out = T.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, x):
        x = self.slope(self.norm(self.down(x)))
        return self.out(torch.cat([x, self.up(self.inner(self.pool(x)))], 1))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_u_net(dtype):
    net = Down(8, Down(16, Down(32)))
    net.initialize(mx.init.Xavier())
    data = mx.nd.random.normal(shape=(2, 3, 32, 32))
    net(data)
    amp.cast(randomized(net), dtype)
    module = TorchDown(3, 8, 16, TorchDown(8, 16, 32, TorchDown(16, 32, 32)))
    loaded(net, module, data)
    far = relative_difference(amp.cast(net, "float32"), module, data)
    print(f"U-Net: {far:.1e}")
    assert far < BOUND
