"""Networks by name, and the smallest images that they accept."""

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.networks import models
from gluon_amp.training.networks.models import MXNET_MODELS, build, full_name, smallest_size

from mxnet import nd
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision


@pytest.mark.parametrize(
    "name, layers, full",
    [
        ("resnet-v1", 50, "resnet50_v1"),
        ("resnet", None, "resnet50_v2"),
        ("mobilenet", None, "mobilenet1.0"),
        ("resnet50_v1", 50, "resnet50_v1"),
    ],
)
def test_names_of_mxnets_examples(name, layers, full):
    assert full_name(name, layers) == full


def test_a_number_of_layers_needs_a_family():
    with pytest.raises(UsageError, match="--num-layers 50 does not belong to --network alexnet"):
        full_name("alexnet", 50)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("cifar_resnet8_v1", 32),
        ("alexnet", 64),
        ("squeezenet1.1", 224),
        ("inceptionv3", 299),
        ("hrnet_w18_small_v1_c", 32),  # its argument for the classes has another name
    ],
)
def test_the_smallest_size_of_a_network(name, size, capsys):
    assert smallest_size(name, 5) == size
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("resnet50_v1b_gn", "--model resnet50_v1b_gn cannot be built by GluonCV with MXNet 1.9.1"),
        ("nasnet_4_1056", "--model nasnet_4_1056 cannot be built by GluonCV with MXNet 1.9.1"),
        ("resnet18_v1b_0.89", "--model resnet18_v1b_0.89 fits no size of images from 32 to 512"),
    ],
)
def test_a_network_without_a_smallest_size_is_one_sentence(name, sentence):
    with pytest.raises(UsageError) as caught:
        smallest_size(name, 5)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_a_network_with_outputs_of_its_own_is_one_sentence(monkeypatch):
    monkeypatch.setitem(models.OWN_MODELS, "seven", lambda classes: nn.Dense(7))
    with pytest.raises(UsageError, match="--model seven fits no .*it has 7 outputs for 5 classes"):
        smallest_size("seven", 5)


def test_mxnets_models_are_all_listed():
    with pytest.raises(ValueError) as error:
        vision.get_model("no such model")
    assert set(str(error.value).split("\n\t")[1:]) == set(MXNET_MODELS)


@pytest.mark.parametrize(
    "name, hint",
    [
        ("resnet5", "did you mean .*resnet50_v1"),
        ("CIFAR_RESNET20", "did you mean .*cifar_resnet20_v1"),
        ("ssd_300_vgg16_atrous_voc", "is not an image classifier"),
        ("", "resnet50_v1, for example, is one"),
    ],
)
def test_an_unknown_model_gets_near_matches(name, hint):
    with pytest.raises(UsageError, match=hint):
        build(name, 10)


def test_the_convnet_is_as_small_as_its_docstring_says():
    net = build("convnet", 10)
    net.initialize()
    assert net(nd.zeros((2, 3, 28, 28))).shape == (2, 10)
    trained = [param for param in net.collect_params().values() if param.grad_req != "null"]
    assert sum(param.data().size for param in trained) == 29_466
    assert smallest_size("convnet", 10, (4, 28)) == 28
