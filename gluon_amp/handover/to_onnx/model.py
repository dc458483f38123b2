"""The ONNX model: what the writer has as a file's bytes, and how onnxruntime runs it."""

import importlib
from types import ModuleType
from typing import Any, List, Mapping, Sequence, Set, Tuple, Union

import numpy as np

from gluon_amp.base.messages import UsageError, reason_of
from gluon_amp.graph import Edge
from gluon_amp.handover.to_onnx.translate import Translated
from gluon_amp.handover.to_onnx.writer import IR_VERSION, OPSET, Tensor

LARGEST = 2**31 - 2**20  # bytes of the weights in one file, as protobuf holds less than 2 GiB


def packages() -> Tuple[ModuleType, ModuleType]:
    """Return onnx and onnxruntime; one that is missing, or too new for this numpy, is refused."""
    return _package("onnx"), _package("onnxruntime")


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a package that is too new raises whatever it happens to
        raise UsageError(
            f"export_onnx() needs onnx and onnxruntime, and {name} cannot be imported "
            f"({reason_of(error)}): run `pip install 'gluon-amp[export]'`."
        ) from None


def encode(
    translated: Translated,
    outputs: Sequence[Edge],
    metadata: Mapping[str, str],
    given: Sequence[Edge] = (),
) -> bytes:
    """Return a model with some edges of the network as its outputs, and perhaps some as inputs.

    The outputs of the network are called `output`, or `output0` and so on.
    """
    onnx, _ = packages()
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    writer = translated.writer
    returned, more = ([translated.tensors[e] for e in edges] for edges in (outputs, given))
    inputs = {**translated.inputs, **{one.name: one for one in more}}
    needed, read = _needed(writer.nodes, [one.name for one in returned], inputs)
    weights = {name: value for name, value in writer.constants.items() if name in read}
    size = sum(value.nbytes for value in weights.values())
    if size > LARGEST:
        raise UsageError(
            f"export_onnx(): the weights have {size / 1e9:.1f} GB, and an ONNX file holds 2.1 GB: "
            "pass policy='float16', which halves them, or export the net in parts."
        )
    nodes = [
        helper.make_node(
            op, of, names, name=names[0], **{k: _attribute(k, x) for k, x in attributes.items()}
        )
        for op, of, names, attributes in needed
    ]
    infos = []
    for name, one in zip(output_names(len(outputs)), returned):
        nodes.append(helper.make_node("Identity", [one.name], [name], name=name))
        infos.append(_info(name, one, writer.batch.size))
    entering = [_info(name, one, writer.batch.size) for name, one in inputs.items()]
    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "gluon_amp", entering, infos, held)
    model = helper.make_model(
        graph,
        producer_name="gluon_amp",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, dict(metadata))
    return model.SerializeToString()


def _needed(
    nodes: Sequence[tuple], wanted: Sequence[str], inputs: Mapping[str, Tensor]
) -> Tuple[list, Set[str]]:
    """Return the nodes that these tensors need, where the inputs are given, and what they read."""
    needed, found = {*wanted}, []
    for node in reversed(nodes):
        _, read, names, _ = node
        if not needed.isdisjoint({*names} - {*inputs}):
            found.append(node)
            needed.update(read)
    return found[::-1], needed


def output_names(count: int) -> List[str]:
    """Return the names of a model's outputs."""
    return ["output"] if count == 1 else [f"output{k}" for k in range(count)]


def _attribute(key: str, value: Any) -> Any:
    from onnx import helper, numpy_helper

    if key == "to":
        return helper.np_dtype_to_tensor_dtype(np.dtype(value))
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    return [int(one) for one in value] if isinstance(value, (tuple, range)) else value


def _info(name: str, tensor: Tensor, batch: int):
    from onnx import helper

    sizes: List[Union[int, str]] = list(tensor.shape)
    for axis, growth in enumerate(tensor.growth):
        if growth and sizes[axis] == batch * growth:
            sizes[axis] = "batch" if growth == 1 else f"{growth}*batch"
        elif growth:  # as large as no other size, for all that a runtime may know
            sizes[axis] = f"{name}_{axis}"
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return helper.make_tensor_value_info(name, dtype, sizes)


class Session:
    """An ONNX model in onnxruntime, on the CPU."""

    def __init__(self, model: bytes) -> None:
        _, onnxruntime = packages()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised
        try:
            self._session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise UsageError(f"onnxruntime cannot load the file: {reason_of(error)}.") from None
        self._inputs = [one.name for one in self._session.get_inputs()]

    def run(self, inputs: Mapping[str, np.ndarray]) -> List[np.ndarray]:
        """Return the outputs; inputs that the model does not read are left out."""
        try:
            return self._session.run(None, {name: inputs[name] for name in self._inputs})
        except Exception as error:
            raise UsageError(f"onnxruntime cannot run the file: {reason_of(error)}.") from None
