"""Networks by name: our own, those of MXNet's model zoo and of GluonCV's."""

import re
from typing import Callable, Dict, Optional, Sequence, Tuple

from gluon_amp.base.messages import UsageError, close_matches, install, reason_of
from gluon_amp.training.networks.efficientnet_lite import NAME, EfficientNetLite0

import mxnet as mx
from mxnet.gluon import HybridBlock, nn
from mxnet.gluon.model_zoo import vision

_MXNET_FAMILIES = """
alexnet
densenet121 densenet161 densenet169 densenet201
inceptionv3
mobilenet0.25 mobilenet0.5 mobilenet0.75 mobilenet1.0
mobilenetv2_0.25 mobilenetv2_0.5 mobilenetv2_0.75 mobilenetv2_1.0
resnet18_v1 resnet34_v1 resnet50_v1 resnet101_v1 resnet152_v1
resnet18_v2 resnet34_v2 resnet50_v2 resnet101_v2 resnet152_v2
squeezenet1.0 squeezenet1.1
vgg11 vgg13 vgg16 vgg19 vgg11_bn vgg13_bn vgg16_bn vgg19_bn
"""
MXNET_MODELS: Tuple[str, ...] = tuple(_MXNET_FAMILIES.split())


def convolutions(channels: Sequence[int]) -> nn.HybridSequential:
    """Return layers that halve an image at each convolution.

    Pooling comes first because the layers after it are then four times cheaper, as in Page, "How to
    Train Your ResNet 8: Bag of Tricks" (2019).
    """
    net = nn.HybridSequential()
    for count in channels:
        net.add(
            nn.Conv2D(count, kernel_size=3, padding=1, use_bias=False),
            nn.MaxPool2D(),
            nn.BatchNorm(),
            nn.Activation("relu"),
        )
    return net


def convnet(classes: int) -> HybridBlock:
    """Return a small image classifier, for small images and machines without a GPU."""
    net = convolutions((16, 32, 64))
    net.add(nn.Dense(classes))
    return net


def lenet_bn(classes: int) -> HybridBlock:
    """Return LeNet with 3×3 convolutions, BatchNorm, ReLU and dropout; pooling as in `convnet`."""
    net = convolutions((32, 64))
    net.add(nn.Dense(256, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    net.add(nn.Dropout(0.3), nn.Dense(classes))
    return net


def mlp(classes: int) -> HybridBlock:
    """Return the three dense layers of MXNet's example ``symbols/mlp.py``."""
    net = nn.HybridSequential()
    net.add(nn.Dense(128, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(classes))
    return net


def perceptron(classes: int) -> HybridBlock:
    """Return four dense layers without norms, for inputs that are no images."""
    net = nn.HybridSequential()
    net.add(*(nn.Dense(256, activation="relu") for _ in range(3)), nn.Dense(classes))
    return net


OWN_MODELS: Dict[str, Callable[..., HybridBlock]] = {
    "convnet": convnet,
    "lenet_bn": lenet_bn,
    "mlp": mlp,
    "perceptron": perceptron,
    NAME: EfficientNetLite0,
}

# GluonCV's list also has detectors, segmenters, and pose, depth and video networks.
GLUONCV_CLASSIFIER = re.compile(
    r"(se_)?resnet\d+_v[12]|resnet\d+_v1[bcdes](_gn|_0\.\d+)?|resnest\d+|(se_)?resnext\w+|senet_\w+"
    r"|vgg\d+(_bn)?|alexnet|densenet\d+|shufflenet_v\d|squeezenet[\d.]+|googlenet|inceptionv3"
    r"|xception\d*|mobilenet[\d.]+|mobilenetv2_[\d.]+|mobilenetv3_(large|small)|darknet53|dla34"
    r"|nasnet_\w+|(cifar_)?residualattentionnet\d+|hrnet_\w+_c|cifar_\w+"
)

# MXNet's example scripts name a family and --num-layers; the layers here are their defaults.
EXAMPLE_NAMES: Dict[str, Tuple[str, Optional[int]]] = {
    "resnet": ("resnet{}_v2", 50),
    "resnet-v1": ("resnet{}_v1", 50),
    "resnet_v1": ("resnet{}_v1", 50),
    "resnet_v2": ("resnet{}_v2", 50),
    "resnext": ("resnext{}_32x4d", 50),
    "vgg": ("vgg{}", 16),
    "densenet": ("densenet{}", 121),
    "mobilenet": ("mobilenet1.0", None),
    "mobilenetv2": ("mobilenetv2_1.0", None),
    "squeezenet": ("squeezenet1.0", None),
    "inception-v3": ("inceptionv3", None),
}

GLUONCV_MISSING = f"run `{install('gluoncv')}` for GluonCV's models"


def _cifar_resnet8(**options) -> HybridBlock:
    """GluonCV's CIFAR ResNet with one block a stage, the smallest of the family (6n + 2 layers)."""
    from gluoncv.model_zoo import get_cifar_resnet

    return get_cifar_resnet(1, 8, **options)


def _gluoncv_models() -> Dict[str, Callable[..., HybridBlock]]:
    """Return GluonCV's classifiers by name; none where GluonCV is not installed."""
    try:
        from gluoncv import model_zoo
    except ImportError:
        return {}

    def maker(name: str) -> Callable[..., HybridBlock]:
        keyword = "num_classes" if name.startswith("hrnet") else "classes"
        return lambda classes: model_zoo.get_model(name, **{keyword: classes})

    names = filter(GLUONCV_CLASSIFIER.fullmatch, model_zoo.get_model_list())
    return {"cifar_resnet8_v1": _cifar_resnet8, **{name: maker(name) for name in names}}


def full_name(name: str, layers: Optional[int] = None) -> str:
    """Return the zoo's name of a network that MXNet's examples call `name`."""
    pattern, default = EXAMPLE_NAMES.get(name, (name, None))
    if layers is not None and default is None and str(layers) not in name:
        raise UsageError(
            f"--num-layers {layers} does not belong to --network {name}: leave it out."
        )
    return pattern.format(layers or default)


def build(name: str, classes: int) -> HybridBlock:
    """Return an image classifier by name, not initialized: our own, MXNet's, or else GluonCV's."""
    if name in OWN_MODELS:
        return OWN_MODELS[name](classes=classes)
    if name in MXNET_MODELS:
        return vision.get_model(name, classes=classes)
    others = _gluoncv_models()
    if name in others:
        try:
            return others[name](classes=classes)
        except (KeyError, TypeError, mx.MXNetError) as error:  # not written for this MXNet
            raise UsageError(
                f"--model {name} cannot be built by GluonCV with MXNet {mx.__version__} "
                f"({type(error).__name__}: {reason_of(error)[:99]}): choose another model."
            ) from None
    known = sorted({*OWN_MODELS, *MXNET_MODELS, *others})
    near = close_matches(name, known)
    hint = f"did you mean {', '.join(near)}?" if near else "resnet50_v1, for example, is one."
    if not others:
        hint = f"{GLUONCV_MISSING}, or use one of MXNet's, such as {', '.join(near or known[:2])}."
    raise UsageError(f"--model {name} is not an image classifier of MXNet or GluonCV: {hint}")
