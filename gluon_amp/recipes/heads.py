"""The head of a classifier: the layers whose shapes follow the number of classes."""

from typing import List, Sequence

from mxnet.gluon import Block, HybridBlock, Parameter
from mxnet.gluon.nn import BatchNorm


def head_of(net: HybridBlock, another: HybridBlock) -> List[Parameter]:
    """Return the parameters of a network's head.

    It is a dense layer in most zoo networks, a 1×1 convolution in SqueezeNet and MobileNetV2, and
    named ``output`` or ``fc`` or otherwise; so it is found by what makes a head.

    Parameters
    ----------
    net : HybridBlock
    another : HybridBlock
        The same network for another number of classes.

    Raises
    ------
    ValueError
        No shape follows the number of classes.
    """
    own, other = net._collect_params_with_prefix(), another._collect_params_with_prefix()
    head = [own[name] for name in own if _differ(own[name].shape, other[name].shape)]
    if not head:
        raise ValueError("no layer of the network depends on the number of classes.")
    return head


def _differ(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes cannot be the same; 0 and -1 are not known yet."""
    return any(a != b for a, b in zip(one, other) if a > 0 and b > 0)


def freeze_features(net: Block, head: List[Parameter]) -> None:
    """Train nothing but a head: neither weights nor the running statistics before it change.

    BatchNorm then normalises by its running statistics, as in prediction.
    """
    kept = {param.name for param in head}
    for param in net.collect_params().values():
        if param.name not in kept:
            param.grad_req = "null"

    def visit(block: Block) -> None:
        if isinstance(block, BatchNorm):
            block._kwargs["use_global_stats"] = True
        for child in block._children.values():
            visit(child)

    visit(net)
