"""The head of a classifier: the layers whose shapes depend on the number of classes."""

from typing import List, Sequence

from mxnet.gluon import Block, HybridBlock, Parameter
from mxnet.gluon.nn import BatchNorm


def head_of(net: HybridBlock, another: HybridBlock) -> List[Parameter]:
    """Return the parameters of a network's head; `another` is the network for other classes.

    The head is a dense layer in most zoo networks and a 1×1 convolution in SqueezeNet and
    MobileNetV2. Its name varies, so the shapes identify it.
    """
    pairs = zip(net.collect_params().values(), another.collect_params().values())
    head = [own for own, other in pairs if _differ(own.shape, other.shape)]
    if not head:
        raise ValueError("no layer of the network depends on the number of classes.")
    return head


def _differ(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two shapes cannot be the same; 0 and -1 are not known yet."""
    return any(a != b for a, b in zip(one, other) if a > 0 and b > 0)


def freeze_features(net: Block, head: List[Parameter]) -> None:
    """Train only the head: weights and running statistics before it stay as they are.

    BatchNorm then normalizes by its running statistics, as in prediction.
    """
    trained = {param.name for param in head}
    for param in net.collect_params().values():
        if param.name not in trained:
            param.grad_req = "null"
    freeze_statistics(net)


def freeze_statistics(net: Block) -> None:
    """Make each BatchNorm normalize by its running statistics also in training."""
    net.apply(_use_running_statistics)


def _use_running_statistics(block: Block) -> None:
    if isinstance(block, BatchNorm):
        # Gluon has this option only in BatchNorm's constructor.
        block._kwargs["use_global_stats"] = True
