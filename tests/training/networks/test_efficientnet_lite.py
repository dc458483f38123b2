"""EfficientNet-Lite0: its layers against those of the published PyTorch network."""

import json

import numpy as np
import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.networks import weights
from gluon_amp.training.networks.efficientnet_lite import (
    NAME,
    EfficientNetLite0,
    gluon_parameters,
    published_names,
)
from gluon_amp.training.networks.models import build
from tests.torch_files import as_zip
from tests.training.networks.efficientnet_lite_reference import (
    PATH,
    describe,
    images,
    seeded_weights,
)

import mxnet as mx
from mxnet import nd

REFERENCE = json.loads(PATH.read_text())
STEM, BLOCKS, HEAD = slice(0, 4), slice(4, 20), slice(20, 23)


def shapes(classes=1000):
    params = EfficientNetLite0(classes)._collect_params_with_prefix().values()
    return {name: param.shape for name, param in zip(published_names(), params)}


def initialized(classes=1000):
    net = build(NAME, classes)
    net.initialize(mx.init.Zero())
    return net


def activations(net):
    """Return the outputs of the stem, of each block, of the head, and the logits."""
    x = nd.array(images())
    layers, features = [], net.features
    for layer in features[STEM]:
        x = layer(x)
    layers.append(x)
    for block in features[BLOCKS]:
        x = block(x)
        layers.append(x)
    for layer in features[HEAD]:
        x = layer(x)
    return [layer.asnumpy() for layer in (*layers, x, net(nd.array(images())))]


def test_each_layer_computes_what_the_published_network_computes():
    net, arrays = initialized(), gluon_parameters(seeded_weights(shapes()))
    for name, param in net._collect_params_with_prefix().items():
        param.set_data(nd.array(arrays[name]))
    layers = activations(net)
    assert len(layers) == len(REFERENCE) == 19
    for layer, expected in zip(map(describe, layers), REFERENCE):
        scale = np.sqrt(expected["mean_square"])
        assert layer.pop("shape") == expected["shape"]
        for name, value in layer.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-4 * scale)


def test_pytorchs_weights_are_a_pretrained_file(tmp_path):
    published = seeded_weights(shapes())
    path = tmp_path / "weights.pth"
    path.write_bytes(as_zip({**published, "_bn0.num_batches_tracked": np.array(3)}))
    net = initialized(classes=7)
    values = net._collect_params_with_prefix()
    head = values["output.weight"].data().asnumpy()
    assert 0 < np.abs(head).max() < 0.1  # small, whatever the other layers begin with
    assert weights.load_matching(net, path) == ["output.weight", "output.bias"]
    assert np.array_equal(values["output.weight"].data().asnumpy(), head)
    first = values["features.1.weight"].data().asnumpy()
    assert np.array_equal(first, published["_conv_stem.weight"])


def test_weights_of_another_network_are_one_sentence(tmp_path):
    path, net, published = tmp_path / "weights.pth", initialized(), seeded_weights(shapes())
    first = published.pop("_conv_stem.weight")
    for arrays, reason in (
        ({**published, "conv1.weight": first}, "_conv_stem.weight is missing"),
        ({**published, "_conv_stem.weight": first, "more": first}, "more is unknown"),
    ):
        path.write_bytes(as_zip(arrays))
        with pytest.raises(UsageError, match=f"those of efficientnet_lite0, in which {reason}"):
            weights.load_matching(net, path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UsageError, match="cannot be read as PyTorch's weights"):
        weights.load_matching(net, path)


def test_a_package_is_found_and_not_imported(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "MODULE", "some_weights_of_a_test")
    monkeypatch.setattr(weights, "WEIGHTS", "models/a.pth")
    folder = tmp_path / weights.MODULE / "models"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"the package efficientnet-lite0-.*\[pretrained\]'"):
        weights.pretrained_file(NAME, tmp_path)
    (folder / "a.pth").write_bytes(b"")
    assert weights.pretrained_file(NAME, tmp_path) == folder / "a.pth"
