"""The head of a classifier: the layers whose shapes depend on the number of classes."""

from typing import List, Sequence

from mxnet.gluon import Block, HybridBlock, Parameter
from mxnet.gluon.nn import BatchNorm


def head_of(net: HybridBlock, another: HybridBlock) -> List[Parameter]:
    """Return the head. Its names vary, but its shapes alone depend on the number of classes."""
    pairs = zip(net.collect_params().values(), another.collect_params().values())
    head = [own for own, other in pairs if _differ(own.shape, other.shape)]
    if not head:
        raise ValueError("no layer of the network depends on the number of classes.")
    return head


def _differ(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two shapes cannot be the same; 0 and -1 are not known yet."""
    return any(a != b for a, b in zip(one, other) if a > 0 and b > 0)


def freeze_features(net: Block, head: List[Parameter]) -> None:
    """Train only the head: weights and running statistics before it stay as they are."""
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
