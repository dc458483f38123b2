"""Runs a case with PyTorch, under an interpreter that has torch and torchvision.

It imports nothing of this repository but `serve`.

The networks are those of MXNet's Model Zoo: where torchvision's differ in what they compute, they
are changed here, or defined. Images are channels_last, and bfloat16 is that of autocast.
"""

import os
from typing import Any, Callable, Dict

import torch
import torchvision
from torch import nn
from torch.nn import functional

from experiments.benchmarks.serve import Built, serve

CLASSES = 1000
SETTINGS = {"lr": 1e-6, "momentum": 0.9, "weight_decay": 1e-4}


def build(case: Dict[str, Any]) -> Built:
    """Return what runs a case, and what counts its parameters."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    torch.manual_seed(0)
    net = network(case["network"], case["pixels"]).to(memory_format=torch.channels_last)
    run = {"train": train, "infer": infer}[case["work"]](net, case)
    return run, lambda: sum(one.numel() for one in net.parameters())


def train(net: nn.Module, case: Dict[str, Any]) -> Callable[[], None]:
    """Return a training step."""
    images, labels = images_of(case), torch.randint(CLASSES, (case["batch"],))
    optimizer = torch.optim.SGD(net.parameters(), fused=True, **SETTINGS)
    net.train()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=case["dtype"] == "bfloat16"):
            loss = functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def infer(net: nn.Module, case: Dict[str, Any]) -> Callable[[], None]:
    """Return a forward pass without gradients."""
    images = images_of(case)
    net.eval()

    @torch.inference_mode()
    def forward() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=case["dtype"] == "bfloat16"):
            net(images)

    return forward


def images_of(case: Dict[str, Any]) -> torch.Tensor:
    """Return a batch of random images."""
    images = torch.randn(case["batch"], 3, case["pixels"], case["pixels"])
    return images.to(memory_format=torch.channels_last)


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


NETWORKS = {
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
