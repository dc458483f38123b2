"""Networks by name."""

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.networks import models
from gluon_amp.training.networks.models import MXNET_MODELS, build, full_name

from mxnet.gluon.model_zoo import vision


@pytest.mark.parametrize(
    "name, layers, full",
    [
        ("resnet-v1", 50, "resnet50_v1"),
        ("resnet", None, "resnet50_v2"),
        ("mobilenet", None, "mobilenet1.0"),
    ],
)
def test_names_of_mxnets_examples(name, layers, full):
    assert full_name(name, layers) == full


def test_a_number_of_layers_needs_a_family():
    with pytest.raises(UsageError, match="--num-layers 50 does not belong to --network alexnet"):
        full_name("alexnet", 50)


def test_a_network_that_gluoncv_cannot_build_is_one_sentence(monkeypatch):
    monkeypatch.setattr(models, "_gluoncv_models", lambda: {"old": lambda classes: {}["a\nb"]})
    with pytest.raises(UsageError) as caught:
        build("old", 5)
    assert "--model old cannot be built by GluonCV with MXNet 1.9." in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["cifar_resnet8_v1", "hrnet_w18_small_v1_c"])
def test_gluoncvs_networks_have_an_output_for_each_class(name):
    """The second one has another name for the argument."""
    assert [*build(name, 5).collect_params().values()][-1].shape == (5,)


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
