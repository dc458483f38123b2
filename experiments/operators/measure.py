"""Call operators, and compare what a second backward pass on one kept graph computes.

Run as `python -m experiments.operators.measure FIRST`, it prints the number of each call from the
one with this number on, as an operator may crash the process, and what it measured.
"""

import contextlib
import json
import signal
import sys
from typing import Callable, Dict, Iterator, List, Tuple

import numpy as np

from experiments.operators import calls, programs
from gluon_amp.base.mxnet_internals import imperative_invoke
from gluon_amp.graph import op_table

import mxnet as mx
from mxnet import autograd, nd

Run = Callable[[List[nd.NDArray]], List[nd.NDArray]]
Call = Tuple[str, list, Dict[str, str], str]

# Operators that read positive definite matrices
SYMMETRIC = ("_linalg_potr", "_linalg_syevd", "_npi_cholesky", "_npi_eigh", "_npi_eigvalsh")
# Where random inputs begin: the first at which outputs and gradients are finite is taken
STARTS = (-0.5, 0.25, 1.25)
# The lower one of two integers, where it is not 0: a sequence is not shorter than its labels
LEAST = {
    "CTCLoss": (0, 1, 4, 1),
    **{f"Sequence{name}": (0, 1) for name in ("Last", "Mask", "Reverse")},
}
NONE = (0,) * 9
SECONDS = 120  # for a call, on a busy machine
STATIC = (("static_alloc", True), ("static_shape", True))


def all_calls() -> Iterator[Call]:
    """Yield operator, shapes of inputs, attributes and dtype of each call, then the cast nets."""
    for op in calls.NETWORK:
        for shapes, attrs in calls.calls(op):
            for dtype in ("float32", "float64"):
                yield op, shapes, attrs, dtype
    yield from ((name, [], {}, "") for name in programs.NETS)


def inputs(op: str, shapes: list, dtype: str, start: float) -> List[nd.NDArray]:
    """Return random inputs of an operator: reals from `start` on, or two integers."""
    random, arrays = np.random.RandomState(7), []
    for i, shape in enumerate(shapes):
        values, kind = random.uniform(start, start + 1, shape), dtype
        if isinstance(shape, calls.Ids):
            values = random.randint(0, 2, shape) + LEAST.get(op, NONE)[i]
            kind = calls.ID_DTYPES.get(op, "int32")
        elif op.startswith(SYMMETRIC):
            values = values @ values.T + np.eye(len(values))
        arrays.append(nd.array(values, dtype=kind))
    return arrays


def imperatively(op: str, attrs: dict) -> Run:
    """Return what runs an operator at once."""
    handle = calls.REGISTERED[op].handle.value
    names, values = list(attrs), [str(value) for value in attrs.values()]
    return lambda arrays: imperative_invoke(handle, arrays, names, values, None, False, True)


def ways(op: str, shapes: list, attrs: dict, arrays: List[nd.NDArray]) -> Iterator[Tuple[str, Run]]:
    """Yield how an operator can be run: at once or in a graph, alone or among other operators."""
    if op in programs.PROGRAMS:
        yield "imperative", lambda arrays: [programs.PROGRAMS[op](arrays[0])]
        return
    call = imperatively(op, attrs)
    yield "imperative", call
    symbol = calls.node(op, shapes, attrs)
    written, internals = symbol.list_auxiliary_states(), symbol.get_internals()
    outputs = [name for name in internals.list_outputs() if name.startswith("node_")]
    symbol = mx.sym.Group([internals[name] for name in outputs])
    yield from (("graph", _in_graph(symbol, ())), ("static graph", _in_graph(symbol, STATIC)))
    if not all(map(_is_real, call([array.copy() for array in arrays]))):
        return
    scaled = {i for i, array in enumerate(arrays) if _is_real(array) and f"x{i}" not in written}
    symbol = symbol(**{f"x{i}": mx.sym.var(f"x{i}") * 1.0 for i in scaled})
    symbol = mx.sym.Group([output * 1.0 for output in symbol])
    yield (
        "imperative, among others",
        lambda arrays: [
            output * 1.0
            for output in call([a * 1.0 if i in scaled else a for i, a in enumerate(arrays)])
        ],
    )
    yield "graph, among others", _in_graph(symbol, ())
    yield "static graph, among others", _in_graph(symbol, STATIC)


def _in_graph(symbol: mx.sym.Symbol, flags: tuple) -> Run:
    order, cached = [int(name[1:]) for name in symbol.list_inputs()], nd.CachedOp(symbol, flags)

    def run(arrays: List[nd.NDArray]) -> List[nd.NDArray]:
        result = cached(*(arrays[i] for i in order))
        return result if isinstance(result, list) else [result]

    return run


def _is_real(array: nd.NDArray) -> bool:
    return np.dtype(array.dtype).kind == "f"


def _bits(arrays: List[nd.NDArray]) -> List[bytes]:
    return [array.asnumpy().tobytes() for array in arrays]


def measure(run: Run, arrays: List[nd.NDArray], learned: List[nd.NDArray]) -> Dict[str, object]:
    """Return what a call writes, when it draws, and whether its backward pass can run again."""
    before, writes = [array.copy() for array in arrays], set()

    def note_writes(when: str) -> None:
        nd.waitall()  # oneDNN reorders a weight in place while it is used
        for i, array in enumerate(arrays):
            if _bits([array]) != _bits([before[i]]):
                writes.add((i, when))
                before[i] = array.copy()

    results = []
    for training in (False, True):
        for seed in (1, 2, 1, 2):
            mx.random.seed(seed)
            with autograd.train_mode() if training else autograd.predict_mode():
                results.append(_bits(run(arrays)))
            note_writes("training" if training else "inference")
    drawn = [results[i] == results[i + 2] != results[i + 1] == results[i + 3] for i in (0, 4)]
    row: Dict[str, object] = {"random": drawn}
    if learned:
        for array in learned:
            array.attach_grad()
        with autograd.record():
            outputs = [output for output in run(arrays) if _is_real(output)]
        note_writes("training")
        first = second = third = _gradients(outputs, learned, 1, note_writes)
        try:
            second = _gradients(outputs, learned, 1, note_writes)
            third = _gradients(outputs, learned, 16, note_writes)
        except mx.MXNetError:  # MXNet has freed what a loop needs for it
            second = [np.full_like(array, np.nan) for array in first]
        row["equal"] = all(a.tobytes() == b.tobytes() for a, b in zip(first, second))
        row["scaled"] = all(np.array_equal(a * 16, b, True) for a, b in zip(first, third))
        row["zero"] = not any(a.any() for a in first)
        row["finite"] = all(np.isfinite(a).all() for a in first)
        written = _fresh_gradients(run, arrays, learned, "write")
        try:
            added = _fresh_gradients(run, arrays, learned, "add", held=4)
            row["adds"] = _close([array + 4 for array in written], added)
        except mx.MXNetError:  # MXNet refuses to add
            row["adds"] = False
    return {**row, "writes": sorted(writes)}


def _fresh_gradients(
    run: Run, arrays: List[nd.NDArray], learned: List[nd.NDArray], request: str, held: float = 0.0
) -> List[np.ndarray]:
    """Return the gradients of a new pass, in arrays that hold a number before it."""
    for array in learned:
        array.attach_grad(request)
    mx.random.seed(1)
    with autograd.record():
        outputs = [output for output in run(arrays) if _is_real(output)]
    return _gradients(outputs, learned, 1, unwritten=held)


def _close(ones: List[np.ndarray], others: List[np.ndarray]) -> bool:
    pairs = [(one, other, np.abs(one).max(initial=1)) for one, other in zip(ones, others)]
    return all(np.allclose(one, other, 1e-5, 1e-5 * top, True) for one, other, top in pairs)


def in_place(
    symbol: mx.sym.Symbol, call: Run, arrays: List[nd.NDArray], learned: List[int]
) -> bool:
    """Return whether the gradients of an operator in graphs are those of imperative mode.

    In a graph MXNet may write the gradient of an input over that of the result. Where the result is
    added to another tensor, something else reads that, too.
    """
    at = len(arrays)
    result = symbol(**{f"x{i}": mx.sym.var(f"x{i}") * 1.0 for i in learned})[0]
    arrays = [*arrays, nd.ones_like(call([array.copy() for array in arrays])[0])]
    for join in (
        lambda one, other: [one * 1.0, other],
        lambda one, other: [(one + other) * 2.0],
        lambda one, other: [(other + one) * 2.0],
    ):

        def imperative(arrays: List[nd.NDArray], join=join) -> List[nd.NDArray]:
            read = [array * 1.0 if i in learned else array for i, array in enumerate(arrays[:at])]
            return join(call(read)[0], arrays[at] * 1.0)

        graph = _in_graph(mx.sym.Group(join(result, mx.sym.var(f"x{at}") * 1.0)), ())
        found = []
        for run in (imperative, graph):
            copies = [array.copy() for array in arrays]
            learning = [copies[i] for i in (*learned, at)]
            found.append(_fresh_gradients(run, copies, learning, "write"))
        if not _close(*found):
            return False
    return True


def _gradients(outputs, learned, scale, then=lambda when: None, unwritten=0.0) -> List[np.ndarray]:
    """Return the gradients of a backward pass on a kept graph; what it does not write stays."""
    random = np.random.RandomState(8)
    heads = [random.uniform(0.5, 1, output.shape) * scale for output in outputs]
    for array in learned:
        array.grad[:] = unwritten
    heads = [nd.array(head, dtype=output.dtype) for head, output in zip(heads, outputs)]
    autograd.backward(outputs, heads, retain_graph=True)
    then("backward pass")
    return [array.grad.asnumpy() for array in learned]


def learned_inputs(run: Run, arrays: List[nd.NDArray]) -> List[int]:
    """Return the inputs whose gradients an operator writes; some allow only that of the first."""
    reals = [i for i, array in enumerate(arrays) if _is_real(array)]
    for tried in (reals, reals[:1]):
        found, arrays = [], [array.copy() for array in arrays]
        for i in tried:
            arrays[i].attach_grad()
        learned = [arrays[i] for i in tried]
        try:
            for unwritten in (3.0, 5.0):
                with autograd.record():
                    outputs = [output for output in run(arrays) if _is_real(output)]
                found.append(_gradients(outputs, learned, 1, unwritten=unwritten))
        except Exception:  # an `MXNetError`, or what MXNet makes of its text
            continue
        return [i for i, a, b in zip(tried, *found) if (a != 3).any() or (b != 5).any()]
    return []


def rows(op: str, shapes: list, attrs: Dict[str, str], dtype: str) -> Iterator[dict]:
    """Yield what was measured for each way to run a call, or the error."""
    if op in programs.NETS:
        yield from programs.net_rows(op)
        return
    positive = op_table.rule(op).reason.startswith("reads the parameters")
    for start in STARTS[positive:]:
        found = list(_rows_from(op, shapes, attrs, dtype, start))
        if all(row.get("finite", True) for row in found):
            break
    yield from found


def _rows_from(op: str, shapes: list, attrs: dict, dtype: str, start: float) -> Iterator[dict]:
    way, learned, draws = "imperative", None, False
    with mx.util.np_shape(op.startswith("_np")):
        try:
            for way, run in ways(op, shapes, attrs, inputs(op, shapes, dtype, start)):
                if learned is None:
                    learned = learned_inputs(run, inputs(op, shapes, dtype, start))
                arrays = inputs(op, shapes, dtype, start)
                row = {"way": way, **measure(run, arrays, [arrays[i] for i in learned])}
                draws = draws or any(row["random"])
                yield row
            if learned and not draws and op not in programs.PROGRAMS:
                way, call = "in place", imperatively(op, attrs)
                node = calls.node(op, shapes, attrs)
                yield {
                    "way": way,
                    "in_place": in_place(node, call, inputs(op, shapes, dtype, start), learned),
                }
        except Exception as error:
            with contextlib.suppress(Exception):  # the engine keeps the error of another array
                nd.waitall()
            yield {"way": way, "error": str(error).strip().splitlines()[-1]}


def main(first: int) -> None:
    """Print what was measured, from a call on."""
    for number, call in enumerate(all_calls()):
        if number >= first:
            signal.alarm(SECONDS)  # ends the process
            print(number, end=" ", flush=True)
            text = json.dumps(list(rows(*call)))
            print(text, flush=True)
            if "primitive" in text:  # after such an error, oneDNN runs no other primitive
                return


if __name__ == "__main__":
    main(int(sys.argv[1]))
