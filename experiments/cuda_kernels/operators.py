"""Run each operator on the stand-ins in float16, forward and backward: `python -m ... SKIPPED`.

Prints a JSON line for each operator: where its float16 kernel comes from, or the error. An operator
can crash the process; it is the last line, with no source, and then comes among SKIPPED.
"""

import json
import os
import re
import subprocess
import sys
from typing import Dict, List, Optional, Tuple

import numpy as np

from experiments.cuda_kernels.stand_in import Log
from experiments.operators import calls as operator_calls

import mxnet as mx
from mxnet import nd

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
FLOAT32_PARAMETERS = ("BatchNorm", "BatchNorm_v1", "_contrib_SyncBatchNorm")

LOW = {"dtype": "float16"}
# The calls of operators that create arrays, in float16
CALLS = {
    op: ([], {**operator_calls.call(op)[1], **LOW})
    for op in operator_calls.NETWORK
    for name, kind in operator_calls.REGISTERED[op].arguments
    if name == "dtype" and "float16" in kind and not operator_calls.REGISTERED[op].inputs
}
CALLS["one_hot"] = ([operator_calls.ids(4)], {"depth": 3, **LOW})
CALLS["_npi_arange"] = ([], {"start": 0, "stop": 3, **LOW})
CALLS["_npi_where_scalar2"] = ([(2, 3)], {"x": 1.0, "y": 2.0})  # the condition is float16, too
CALLS["_zeros_without_dtype"] = ([], {"shape": (2, 3), "dtype": 2})


def run(op: str, dtype: object, backward: bool) -> List[str]:
    """Run an operator and return the log, or raise MXNet's error."""
    shapes, _ = operator_calls.call(op)
    symbol = operator_calls.node(op)
    arrays = {
        f"x{i}": nd.empty(tuple(shape), ctx=mx.gpu(0), dtype=_dtype(op, i, shape, dtype))
        for i, shape in enumerate(shapes)
    }
    states = {name: arrays.pop(name) for name in symbol.list_auxiliary_states()}
    floats = [name for name in arrays if not isinstance(shapes[int(name[1:])], operator_calls.Ids)]
    backward = backward and bool(floats)
    grads = {name: nd.empty(arrays[name].shape, mx.gpu(0), arrays[name].dtype) for name in floats}
    requests = {name: "write" if name in floats and backward else "null" for name in arrays}
    with Log() as log, mx.util.np_shape(op.startswith("_np")):
        executor = symbol.bind(mx.gpu(0), arrays, grads if backward else None, requests, states)
        outputs = executor.forward(is_train=backward)
        if backward:
            executor.backward([nd.empty(out.shape, mx.gpu(0), out.dtype) for out in outputs])
        nd.waitall()
    return log.lines


def _dtype(op: str, position: int, shape: tuple, dtype: object) -> object:
    if isinstance(shape, operator_calls.Ids):
        return operator_calls.ID_DTYPES.get(op, "int32")
    return "float32" if op in FLOAT32_PARAMETERS and position else dtype


def source(op: str) -> Tuple[Optional[str], str]:
    """Return where an operator's float16 kernel comes from, or None and the error."""
    try:
        lines, backward = _run_in_float16(op)
    except Exception as error:
        return None, str(error).strip().splitlines()[-1]
    try:
        run(op, BFLOAT16, backward)
    except Exception as error:
        places = re.findall(r'File "\.\./([^"]+)", line (\d+)', str(error))
        if places and "base.h" not in places[-1][0]:
            path, line = places[-1]
            return f"{os.path.normpath(path)}:{line}", ""
    return _kernel(lines), ""


def _run_in_float16(op: str) -> Tuple[List[str], bool]:
    """Run forward and backward, or only forward where the backward pass fails in float32 too.

    Return the log, and whether the backward pass ran.
    """
    try:
        return run(op, "float16", backward=True), True
    except Exception:
        try:
            run(op, "float32", backward=True)
        except Exception:
            return run(op, "float16", backward=False), False
        raise


def _kernel(lines: List[str]) -> Optional[str]:
    """Return the name of the first float16 kernel that does more than fill an array."""
    launched = [line[7:] for line in lines if line.startswith("KERNEL") and "half" in line]
    names = subprocess.run(["c++filt", *launched], capture_output=True, text=True).stdout
    names = (
        [
            re.sub(r"mxnet::op::|mshadow_op::|mxnet_op::|mshadow::|^void ", "", name)
            for name in names.splitlines()
        ]
        if launched
        else []
    )
    computing = [name for name in names if "set_to_int" not in name]
    if computing:
        generic = re.match(r"mxnet_generic_kernel(?:_ex)?<(?:op_with_req<)?(\w+)", computing[0])
        return generic.group(1) if generic else re.match(r"[\w:]+", computing[0]).group()
    if names:
        return "set_to_int"
    return "cudaMemcpy" if any(line.startswith("COPY") for line in lines) else None


def main(skipped: List[str]) -> None:
    """Print a line for each operator that is not skipped."""
    operator_calls.CALLS.update({op: [call] for op, call in CALLS.items()})
    for op in operator_calls.NETWORK:
        if op not in skipped:
            print(json.dumps({"op": op}), flush=True)
            found, error = source(op)
            row: Dict[str, object] = {"op": op, "source": found, "error": error}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
