"""Runs a case with PyTorch, under an interpreter that has torch and torchvision.

It imports nothing of this repository but `serve` and `sizes`.

The networks are those of MXNet's Model Zoo and of `networks`: where torchvision's differ in what
they compute, they are changed here, or defined. Images are channels_last, and bfloat16 is that of
autocast.
"""

import os
from functools import partial
from typing import Any, Callable, Dict, Tuple

import torch
import torchvision
from torch import nn
from torch.nn import functional

from experiments.benchmarks import sizes
from experiments.benchmarks.serve import Built, serve

CLASSES = 1000
DECAY = {"weight_decay": 1e-4, "fused": True}
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=1e-6, momentum=0.9, **DECAY),
    "adam": partial(torch.optim.Adam, lr=sizes.RATE, **DECAY),
}


def build(case: Dict[str, Any]) -> Built:
    """Return what runs a case, and what counts its parameters."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    torch.manual_seed(0)
    net = network(case["network"], case["pixels"]).to(memory_format=torch.channels_last)
    if case["library"] == "torch.compile":
        net.compile()
    run = {"train": train, "infer": infer}[case["work"]](net, case)
    return run, lambda: {"parameters": sum(one.numel() for one in net.parameters())}


def train(net: nn.Module, case: Dict[str, Any]) -> Callable[[], None]:
    """Return a training step."""
    inputs, labels = batch_of(case)
    optimizer = OPTIMIZERS[case["optimizer"]](net.parameters())
    net.train()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=case["dtype"] == "bfloat16"):
            loss = functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def infer(net: nn.Module, case: Dict[str, Any]) -> Callable[[], None]:
    """Return a forward pass without gradients."""
    inputs, _ = batch_of(case)
    net.eval()

    @torch.inference_mode()
    def forward() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=case["dtype"] == "bfloat16"):
            net(inputs)

    return forward


def batch_of(case: Dict[str, Any]) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return random images or tokens, and labels."""
    batch, side, name = case["batch"], case["pixels"], case["network"]
    if name in sizes.VOCABULARIES:
        tokens = torch.randint(sizes.VOCABULARIES[name], (2, batch, side))
        return tokens[0], tokens[1].flatten()
    shape, classes = (batch,), CLASSES
    if name == "unet":  # a label for each pixel
        shape, classes = (batch, side, side), sizes.UNET.classes
    images = torch.randn(batch, 3, side, side).to(memory_format=torch.channels_last)
    return images, torch.randint(classes, shape)


# --------------------------------------------------------------------------------------- networks


def network(name: str, pixels: int) -> nn.Module:
    """Return the network that computes what the Model Zoo's of that name does."""
    if name not in NETWORKS:
        raise ValueError(f"PyTorch has no {name} here")
    return NETWORKS[name](pixels)


def _of_torchvision(name: str, **options: Any) -> Callable[[int], nn.Module]:
    return lambda pixels: getattr(torchvision.models, name)(
        weights=None, num_classes=CLASSES, **options
    )


def resnet50_v1(pixels: int) -> nn.Module:
    """Return ResNet-50 with the strides of the paper, in the first convolution of a block."""
    net = torchvision.models.resnet50(weights=None, num_classes=CLASSES)
    for block in net.modules():
        if isinstance(block, torchvision.models.resnet.Bottleneck):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return net


def vgg11(pixels: int) -> nn.Module:
    """Return VGG-11 without the pooling that enlarges the features of small images."""
    net = torchvision.models.vgg11(weights=None, num_classes=CLASSES)
    net.avgpool = nn.Identity()
    net.classifier[0] = nn.Linear(512 * (pixels // 32) ** 2, 4096)
    return net


class PreActivation(nn.Module):
    """The bottleneck of ResNet v2: normalization and ReLU come before the convolutions."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        outputs = 4 * width
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(width)
        self.norm3 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.skip = None
        if stride != 1 or inputs != outputs:
            self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the convolutions and the shortcut."""
        first = functional.relu(self.norm1(x))
        shortcut = x if self.skip is None else self.skip(first)
        x = self.conv2(functional.relu(self.norm2(self.conv1(first))))
        return self.conv3(functional.relu(self.norm3(x))) + shortcut


def resnet50_v2(pixels: int) -> nn.Module:
    """Return ResNet-50 v2."""
    layers = [
        nn.BatchNorm2d(3, affine=False),
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for number in range(blocks):
            layers.append(PreActivation(inputs, width, 2 if stage and not number else 1))
            inputs = 4 * width
    return nn.Sequential(
        *layers,
        nn.BatchNorm2d(inputs),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inputs, CLASSES),
    )


def mobilenet(pixels: int) -> nn.Module:
    """Return MobileNet v1."""
    layers, inputs = _convolution(3, 32, 3, stride=2), 32
    strided = (128, 256, 512, 1024)
    for outputs in (64, 128, 128, 256, 256, *[512] * 6, 1024, 1024):
        stride = 2 if outputs in strided and outputs != inputs else 1
        layers += _convolution(inputs, inputs, 3, stride, groups=inputs)
        layers += _convolution(inputs, outputs, 1)
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


class Layer(nn.Module):
    """Self-attention and two dense layers, each behind a norm and beside a shortcut."""

    def __init__(self, size: sizes.Transformer):
        super().__init__()
        units = size.units
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(units), nn.LayerNorm(units)
        self.read, self.write = nn.Linear(units, 3 * units), nn.Linear(units, units)
        dense = nn.Linear(units, size.hidden), nn.GELU(), nn.Linear(size.hidden, units)
        self.dense = nn.Sequential(*dense)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many tokens."""
        parts = self.read(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        x = x + self.write(found)
        return x + self.dense(self.norm2(x))


class Transformer(nn.Module):
    """A transformer of some size; its scores have a row for each token of the batch."""

    def __init__(self, size: sizes.Transformer, pixels: int):
        super().__init__()
        units = size.units
        self.embedding = nn.Embedding(size.vocabulary, units)
        self.positions = nn.Embedding(size.positions, units) if size.positions else None
        layers = [*(Layer(size) for _ in range(size.layers)), nn.LayerNorm(units)]
        if size.transforms:
            layers += [nn.Linear(units, units), nn.GELU(), nn.LayerNorm(units)]
        self.body = nn.Sequential(*layers, nn.Linear(units, size.vocabulary))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score of each word for each token."""
        tokens = self.embedding(x)
        if self.positions is not None:
            tokens = tokens + self.positions(torch.arange(x.shape[1]))
        return self.body(tokens).flatten(0, 1)


class Lstm(nn.Module):
    """The LSTM; its scores have a row for each token of the batch."""

    def __init__(self, pixels: int):
        super().__init__()
        size = sizes.LSTM
        self.embedding = nn.Embedding(size.vocabulary, size.embedding)
        self.lstm = nn.LSTM(size.embedding, size.units, size.layers, batch_first=True)
        self.head = nn.Linear(size.units, size.vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score of each word for each token."""
        return self.head(self.lstm(self.embedding(x))[0]).flatten(0, 1)


def _block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(*_convolution(inputs, outputs, 3))


class UNet(nn.Module):
    """The U-Net: each resolution reads what is below, and the same resolution on the way down."""

    def __init__(self, pixels: int):
        super().__init__()
        high, middle, low = sizes.UNET.channels
        self.down1, self.down2 = _block(3, high), _block(high, middle)
        self.bottom = _block(middle, low)
        self.enlarge2 = nn.ConvTranspose2d(low, middle, 2, 2)
        self.enlarge1 = nn.ConvTranspose2d(middle, high, 2, 2)
        self.up2, self.up1 = _block(low, middle), _block(middle, high)
        self.head = nn.Conv2d(high, sizes.UNET.classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score of each class for each pixel."""
        pool = partial(functional.max_pool2d, kernel_size=2)
        first = self.down1(x)
        second = self.down2(pool(first))
        third = self.enlarge2(self.bottom(pool(second)))
        second = self.enlarge1(self.up2(torch.cat([third, second], 1)))
        return self.head(self.up1(torch.cat([second, first], 1)))


NETWORKS = {
    **{name: partial(Transformer, size) for name, size in sizes.TRANSFORMERS.items()},
    "lstm": Lstm,
    "unet": UNet,
    "resnet18_v1": _of_torchvision("resnet18"),
    "resnet50_v1": resnet50_v1,
    "resnet50_v2": resnet50_v2,
    "alexnet": _of_torchvision("alexnet"),
    "vgg11": vgg11,
    "inceptionv3": _of_torchvision("inception_v3", aux_logits=False, init_weights=False),
    "mobilenet1.0": mobilenet,
    "mobilenetv2_1.0": _of_torchvision("mobilenet_v2"),
    "mobilenetv3_large": _of_torchvision("mobilenet_v3_large"),
    "densenet121": _of_torchvision("densenet121"),
    "squeezenet1.1": _of_torchvision("squeezenet1_1"),
}

if __name__ == "__main__":
    serve(build, lambda: None)
