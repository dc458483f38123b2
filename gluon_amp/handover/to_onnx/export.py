"""`export_onnx`: a net as an ONNX file that was run and compared before the call returns."""

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from gluon_amp import graph
from gluon_amp.base.host import host_copy
from gluon_amp.base.messages import UsageError, first_few
from gluon_amp.casting.arguments import arrays_in
from gluon_amp.casting.cast import policy_of
from gluon_amp.files import atomic
from gluon_amp.handover.network import Network, ShapeError, network_of
from gluon_amp.handover.to_onnx.model import encode, output_names, packages
from gluon_amp.handover.to_onnx.translate import batch_of, translate, with_batch
from gluon_amp.handover.to_onnx.verify import WEAK, Row, compare, refuse_differences
from gluon_amp.handover.to_onnx.writer import OPSET, Tensor
from gluon_amp.policy import Policy

import mxnet as mx
from mxnet import autograd, gluon

HEAD = ("batch", "inputs", "output", "against", "largest", "mean", "allowed", "top-1")
TABLE = "{:>5}  {:<7}{:<9}{:<14}{:>9}{:>9}{:>9}{:>8}"


class ExportReport(NamedTuple):
    """What `export_onnx` wrote, and how it was proven; prints as a table.

    Attributes
    ----------
    path : str
        The file.
    size : int
        Its bytes.
    dtype : str
        'float32' or 'float16', with float32 where the policy says so.
    opset : int
        The version of ONNX's operators, 13.
    inputs, outputs : dict
        Sizes and dtype by name, as in `'batch x 3 x 224 x 224 float32'`.
    rows : list of Row
        Each output of each run: `batch`, `inputs` ('given' or 'random'), `output`, `against`
        ('float32 net' of the masters, or 'cast net'), `largest` and `mean` difference and `allowed`
        (what rounding explains, None where only shown) relative to the output's largest value, and
        `agreement`, the share of rows whose largest place is the same. Where rounding may change
        what sorting, NMS or comparisons decide, the rows are of 'part 0' and so on: the network
        between two decisions, given the values that the net itself computes there.
    """

    path: str
    size: int
    dtype: str
    opset: int
    inputs: Dict[str, str]
    outputs: Dict[str, str]
    rows: List[Row]

    def __str__(self) -> str:
        size = f"{self.size / 1e6:.1f} MB" if self.size >= 1e5 else f"{self.size / 1e3:.1f} kB"
        lines = [f"{self.path}: ONNX opset {self.opset}, {self.dtype}, {size}"]
        for kind, tensors in (("input", self.inputs), ("output", self.outputs)):
            lines += [f"  {kind:<8}{name:<9}{text}" for name, text in tensors.items()]
        lines.append(TABLE.format(*HEAD))
        for row in self.rows:
            allowed = "" if row.allowed is None else f"{row.allowed:.1e}"
            agreement = "" if row.agreement is None else f"{row.agreement:.0%}"
            batch = "fixed" if row.batch is None else row.batch
            far = f"{row.largest:.1e}", f"{row.mean:.1e}"
            lines.append(TABLE.format(batch, *row[1:4], *far, allowed, agreement))
        largest = max(row.allowed or 0 for row in self.rows)
        if largest > WEAK:
            lines.append(
                f"Rounding alone moves an output by {largest:.0%}, so this proves little:\n"
                "export trained weights, and give inputs like those of the training."
            )
        return "\n".join(lines)


def export_onnx(
    net: Union[gluon.HybridBlock, mx.mod.BaseModule],
    path: Union[str, "os.PathLike[str]"],
    *inputs: mx.nd.NDArray,
    policy: Optional[Union[str, Policy]] = None,
    batch_axis: Union[int, Sequence[Optional[int]], None] = 0,
    metadata: Mapping[str, str] = {},
) -> ExportReport:
    """Write a net as an ONNX file, after running it and comparing it with the net.

    The file is run by onnxruntime on the given inputs and on random ones, in several batch sizes.
    If an output differs from the net's by more than rounding explains, nothing is written, and the
    error names the first block that differs.

    Parameters
    ----------
    net : HybridBlock or Module
        Cast or not. The file has the float32 masters.
    path : str or os.PathLike
        In an existing folder. An earlier file is replaced only when the new one is proven.
    *inputs : NDArray
        A batch, as for `net(*inputs)`: their sizes but that of the batch are those of the file.
    policy : str or Policy, optional
        None, the default, and 'float32' write float32. 'float16' and its relatives, pins included,
        write a mixed file: weights in float16 (half the size), norms, softmax and sums in float32.
        On a CPU onnxruntime computes much of it in float32, so the cast net shows what overflows.
    batch_axis : int, None or a sequence of them
        The axis of each input whose size stays free in the file; None fixes all sizes.
    metadata : dict of str
        What else the file should say, such as the names of the classes.

    Returns
    -------
    ExportReport
        The differences, which print as a table.

    Raises
    ------
    UsageError
        For an operator without a translation, a net that differs, a missing onnx or onnxruntime
        (`pip install 'gluon-amp[export]'`), or inputs that the net does not accept.
    TypeError
        For a net without a graph.
    OSError
        When the file cannot be written.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> import mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(2, in_units=3), 'float16')
    >>> net.initialize()
    >>> report = amp.export_onnx(net, 'net.onnx', mx.nd.ones((4, 3)))
    >>> report.inputs, report.outputs
    ({'data': 'batch x 3 float32'}, {'output': 'batch x 2 float32'})
    >>> max(row.largest for row in report.rows if row.against == 'float32 net') < 1e-6
    True
    """
    if isinstance(path, (gluon.Block, mx.mod.BaseModule)):
        raise TypeError("export_onnx() expects the net first: amp.export_onnx(net, path, data).")
    path = os.path.abspath(os.fsdecode(path))
    _check_folder(path)
    if not isinstance(metadata, Mapping) or not all(
        isinstance(text, str) for pair in metadata.items() for text in pair
    ):
        raise TypeError(
            f"export_onnx() got {metadata!r}, expected metadata of names and texts: use json.dumps."
        )
    packages()
    policy = _checked_policy(policy)
    float32 = network_of(net, inputs, "export_onnx")
    network = float32 if policy.compute_dtype == "float32" else float32.under(policy)
    dtype, names = policy.compute_dtype, output_names(len(network.outputs))
    clash = [name for name in graph.variables(network.json) if name in names]
    if clash:
        raise UsageError(
            f"export_onnx(): a variable has the name of an output of the file, {first_few(clash)}: "
            "rename it."
        )
    axes = _batch_axes(float32, batch_axis)
    translated = translate(network, axes)
    about = {"dtype": dtype, "producer": "gluon_amp", **metadata}
    model = encode(translated, network.outputs, about)
    rows = compare(model, translated, network, float32, _own_outputs(net, inputs), axes, dtype)
    refuse_differences(rows, network, translated, dtype)
    try:
        atomic.write(path, model)
    except OSError as error:
        what = f"The ONNX file was not written ({error.strerror})"
        raise type(error)(error.errno, what, path) from error
    read = {name: _text(tensor) for name, tensor in translated.inputs.items()}
    returned = {name: _text(translated.tensors[e]) for name, e in zip(names, network.outputs)}
    return ExportReport(path, len(model), dtype, OPSET, read, returned, rows)


def _check_folder(path: str) -> None:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"There is no folder {folder}: create it before exporting to it.")
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise PermissionError(f"{path} cannot be written: give a file in a folder of yours.")


def _checked_policy(policy: Optional[Union[str, Policy]]) -> Policy:
    try:
        policy = Policy.parse(policy or "float32")
    except ValueError as error:
        raise UsageError(f"export_onnx(): {error}") from None
    if policy.studies or policy.compute_dtype not in ("float32", "float16"):
        raise UsageError(
            f"export_onnx() got {policy!r}, expected None, 'float16' or a relative of it: ONNX's "
            "runtimes have kernels of no other dtype for all devices."
        )
    return policy


def _batch_axes(
    network: Network, batch_axis: Union[int, Sequence[Optional[int]], None]
) -> Dict[str, Optional[int]]:
    """Return the axis of each input that follows the batch."""
    names = list(network.inputs)
    given: List[Optional[int]] = (
        [batch_axis] * len(names)
        if batch_axis is None or isinstance(batch_axis, int)
        else list(batch_axis)
    )
    if not all(axis is None or isinstance(axis, int) for axis in given):
        raise TypeError(
            f"export_onnx() got batch_axis={batch_axis!r}, expected an axis, None or one of these "
            "for each input."
        )
    if len(given) != len(names):
        raise UsageError(
            f"export_onnx() got {len(given)} axes of the batch, expected one for each of the "
            f"{len(names)} inputs: {', '.join(names)}."
        )
    axes, sizes = dict(zip(names, given)), {}
    for name, axis in axes.items():
        shape = network.inputs[name].shape
        if axis is not None and not -len(shape) <= axis < len(shape):
            raise UsageError(
                f"export_onnx(): input {name} of shape {shape} has no axis {axis} for the batch: "
                "give batch_axis, None for an input without one."
            )
        if axis is not None:
            sizes[name] = shape[axis]
    if len({*sizes.values()}) > 1:
        raise UsageError(
            f"export_onnx(): the inputs have batches of {sizes}: give batch_axis, one for each "
            "input and None for one that has no batch."
        )
    batch = batch_of(network, axes)
    try:
        network.shapes(network.inputs)
    except ShapeError as error:
        raise UsageError(
            f"export_onnx(): as a graph the net does not accept these inputs ({error}): pass a "
            "batch as in training, and make the net run hybridized."
        ) from None
    if batch.input:
        try:
            network.shapes(with_batch(network.inputs, axes, batch.size + 1))
        except ShapeError as error:
            raise UsageError(
                f"export_onnx(): the net accepts a batch of {batch.size} alone ({error}): pass "
                "batch_axis=None, and the file accepts that batch."
            ) from None
    return axes


def _own_outputs(net: Any, inputs: tuple) -> List[Tuple[str, List[np.ndarray]]]:
    """Return what a cast net returns for the inputs, to be shown beside the float32 net."""
    policy = policy_of(net) if isinstance(net, gluon.HybridBlock) else None
    if policy is None or policy.compute_dtype == "float32":
        return []
    with autograd.pause(train_mode=False):
        outputs = [host_copy(output) for output in arrays_in(net(*inputs))]
    return [(f"net in {policy.compute_dtype}", outputs)]


def _text(tensor: Tensor) -> str:
    sizes = ["batch" if growth else str(size) for size, growth in zip(tensor.shape, tensor.growth)]
    return f"{' x '.join(sizes) or 'scalar'} {tensor.dtype}"
