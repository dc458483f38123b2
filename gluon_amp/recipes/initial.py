"""What a network begins with: random weights, a zoo's, or those of a file."""

import re
from pathlib import Path
from typing import List, Sequence

from gluon_amp.command_line import UsageError

import mxnet as mx
from mxnet import nd
from mxnet.gluon import Block, HybridBlock, Parameter
from mxnet.gluon.model_zoo import model_store
from mxnet.gluon.nn import BatchNorm


def zero_last_gammas(net: Block, model: str) -> int:
    """Let each residual block begin as the identity; return how many there are.

    The gamma of a block's last BatchNorm starts at 0 (Goyal et al. 2017, section 5.1). MXNet's zoo
    has these layers in a block's ``body``, GluonCV's later networks as ``bn2`` or ``bn3``.

    Raises
    ------
    UsageError
        No residual block of the network ends in a BatchNorm.
    """
    found: List[BatchNorm] = []

    def visit(block: Block) -> None:
        norm = _last_norm(block)
        if norm is not None:
            norm.gamma.init = mx.init.Zero()
            found.append(norm)
        for child in block._children.values():
            visit(child)

    visit(net)
    if not found:
        raise UsageError(
            f"--last-gamma: {model} has no residual blocks that end in a BatchNorm: leave it out."
        )
    return len(found)


def _last_norm(block: Block):
    if not hasattr(block, "downsample"):
        return None
    layers = list(block.body._children.values()) if hasattr(block, "body") else []
    last = layers[-1] if layers else getattr(block, "bn3", None) or getattr(block, "bn2", None)
    # a block that begins with its norms (ResNet v2) also names them so
    begins = hasattr(block, "conv1") and next(iter(block._children.values())) is not block.conv1
    return last if isinstance(last, BatchNorm) and not begins else None


def without_decay(net: Block) -> None:
    """Take weight decay off biases, gammas and betas ("Bag of Tricks", He et al. 2019)."""
    for name, param in net.collect_params().items():
        if name.endswith(("bias", "gamma", "beta")):
            param.wd_mult = 0.0


def zoo_file(model: str, root: Path) -> Path:
    """Return the path of a zoo's weights, downloaded where they are not there yet.

    Raises
    ------
    UsageError
        The zoo has none of that name, or no connection.
    """
    try:
        return Path(model_store.get_model_file(model, root=str(root.expanduser())))
    except ValueError:
        return _gluoncv_file(model, root)
    except Exception as error:  # requests' errors, and whatever a proxy says
        raise UsageError(_unreachable(model, error)) from None


def _gluoncv_file(model: str, root: Path) -> Path:
    try:
        from gluoncv.model_zoo.model_store import get_model_file
    except ImportError:
        get_model_file = None
    try:
        if get_model_file is not None:
            return Path(get_model_file(model, root=str(root.expanduser())))
    except ValueError:
        pass
    except Exception as error:
        raise UsageError(_unreachable(model, error)) from None
    raise UsageError(
        f"--use-pretrained: no zoo has weights of {model}: take another --model, or give "
        "--pretrained-file."
    )


def _unreachable(model: str, error: Exception) -> str:
    return (
        f"--use-pretrained: the weights of {model} cannot be downloaded "
        f"({type(error).__name__}): set MXNET_GLUON_REPO to a mirror, or give --pretrained-file."
    )


def load_matching(net: HybridBlock, path: Path) -> List[str]:
    """Load a file's parameters into an initialized network, those that fit; return the others.

    A network for other classes keeps everything but the layers of its head, which stay as they
    were initialized.

    Parameters
    ----------
    net : HybridBlock
        Initialized.
    path : Path
        Written by `save_parameters`, in any dtype.

    Returns
    -------
    list of str
        Parameters of the network that the file has not, or in another shape.

    Raises
    ------
    UsageError
        The file cannot be read, or is of another network.
    """
    path = path.expanduser()
    try:
        loaded = nd.load(str(path))
    except (mx.MXNetError, OSError) as error:
        reason = "it was not found" if not path.exists() else str(error).strip().splitlines()[0]
        raise UsageError(f"{path} cannot be read as parameters: {reason[:200]}.") from None
    if not isinstance(loaded, dict):
        raise UsageError(f"{path} holds arrays without names, expected what save_parameters wrote.")
    loaded = {re.sub("^(arg|aux):", "", name): array for name, array in loaded.items()}
    params = net._collect_params_with_prefix()
    if not loaded.keys() & params.keys():  # `export` and zoo files before 2018 have full names
        params = {p.name: p for p in params.values()}
    new = []
    for name, param in params.items():
        array = loaded.get(name)
        if array is None or not _fits(param.shape, array.shape):
            new.append(name)
        else:
            _give(param, array.astype("float32"))
    weights = [name for name in params if name.endswith("weight")]
    kept = len(set(weights) - set(new))
    if kept < len(weights) / 2:
        raise UsageError(f"{path} is of another network: only {kept} of {len(weights)} layers fit.")
    return new


def copy_features(source: Block, net: Block, head: List[Parameter]) -> None:
    """Give a network the values of another's parameters, but for those of its head.

    The head says which class is which, and those of the other network are others, however many.
    """
    values, own = source._collect_params_with_prefix(), {id(param) for param in head}
    for name, param in net._collect_params_with_prefix().items():
        if id(param) not in own:
            _give(param, values[name].data())


def _give(param: Parameter, value: nd.NDArray) -> None:
    # set_data would only remember the value, in this dtype, where the shape is not known yet
    param._load_init(value, param.list_ctx())


def _fits(own: Sequence[int], other: Sequence[int]) -> bool:
    """Whether shapes agree, where one's own may still be unknown (0 or -1)."""
    return len(own) == len(other) and all(a in (b, 0, -1) for a, b in zip(own, other))
