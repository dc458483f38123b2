"""What a GPU could not run in a cast graph, found without a GPU, by type inference."""

from collections import defaultdict
from typing import Dict, Iterator, List, Tuple

from gluon_amp.casting.binding import binding_of
from gluon_amp.graph import edge_dtypes, op_table, own_operators, to_json
from gluon_amp.inspection.findings import Finding
from gluon_amp.inspection.operators import variable_dtypes
from gluon_amp.lowering import lower

import mxnet as mx
from mxnet import gluon

# Beginnings of the names of operators that exist on a CPU only: ours, and oneDNN's subgraphs
CPU_ONLY = (own_operators.PREFIX, "_sg_mkldnn_")


Problem = Tuple[str, str, str]  # name and operator of a node, and what is wrong with it


def gpu_problems(symbol: mx.sym.Symbol, dtypes: Dict[str, object]) -> List[Problem]:
    """Return the nodes of a cast graph that a GPU could not run in its forward or backward pass.

    These are operators that exist on a CPU only, operators that read or return float16 without a
    float16 CUDA kernel (`op_table`), and those that read or return bfloat16, for which MXNet
    1.9.1 has no CUDA kernels at all. Variables that are not in `dtypes` are float32. Raise
    `ValueError` if the policy accumulates in float16, which only the emulation does.
    """
    return list(_problems(to_json(lower(symbol, dtypes, "gpu")), dtypes))


def _problems(graph: dict, dtypes: Dict[str, object]) -> Iterator[Problem]:
    by_tensor = edge_dtypes(graph, dtypes)
    used_by = defaultdict(set)  # the dtypes that each node reads or returns
    for (i, _), dtype in by_tensor.items():
        used_by[i].add(dtype)
    for i, node in enumerate(graph["nodes"]):
        op = node["op"]
        if op == "null":
            continue
        used = used_by[i].union(by_tensor[j, k] for j, k, *_ in node["inputs"])
        if op.startswith(CPU_ONLY):
            yield node["name"], op, "exists on a CPU only"
        elif "bfloat16" in used:
            yield node["name"], op, "MXNet has no bfloat16 kernels for a GPU"
        elif "float16" in used and op_table.has("no_float16", op):
            yield node["name"], op, "no float16 kernel for a GPU is known"
        for body in node.get("subgraphs", ()):
            yield from _problems(body, {})  # it reads float32 and casts it itself


def gpu_findings(path: str, block: gluon.HybridBlock) -> Iterator[Finding]:
    """Yield a finding for each operator of a float16 block that a GPU could not run in float16."""
    binding = binding_of(block)
    if binding is None or binding.policy.compute_dtype != "float16":
        return
    if binding.policy.accumulate_dtype == "float16":  # which only the emulation does
        return
    if binding.graph is None:
        return
    inputs, symbol = binding.graph
    dtypes = variable_dtypes(block, (variable.name for variable in inputs))
    paths = {node.name: node.block for node in binding.nodes or ()}
    for name, op, problem in gpu_problems(symbol, {**dtypes}):
        fix = f"keep it in float32, as in policy.pin(ops=[{op!r}])"
        problem = f"{op}: {problem}, so a GPU may fail there"
        yield Finding("kernel", paths.get(name, path), problem, fix)
