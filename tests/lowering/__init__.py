"""Tests of gluon_amp/lowering."""

import os
import subprocess
import sys

from gluon_amp.graph import from_json, to_json
from gluon_amp.lowering import lower
from gluon_amp.lowering.typed_graph import TypedGraph
from gluon_amp.policy import Policy, cast_pass

from mxnet import autograd


def on_symbols(rewrite):
    """Return a rewrite of graphs as a function of symbols, as `lower` applies it."""

    def rewritten(symbol, dtypes, *arguments):
        graph = TypedGraph.of(to_json(symbol), dtypes)
        result = rewrite(graph, *arguments)
        return symbol if result is graph else from_json(result.json, like=symbol)

    return rewritten


def ops(symbol):
    """Return the operators of a symbol, without its variables, in their order."""
    return [node["op"] for node in to_json(symbol)["nodes"] if node["op"] != "null"]


def emulated(symbol, **dtypes):
    """Return the graph that float16 has on a CPU for variables of these dtypes."""
    return lower(cast_pass.apply(symbol, Policy.parse("float16"), dtypes), dtypes, "cpu")


def back_through(net, *inputs, head=None):
    """Return what a net computes, after a backward pass from `head`, ones by default.

    It is an array, or a function of the result's shape that returns one.
    """
    with autograd.record():
        out = net(*inputs)
    out.backward(head(out.shape) if callable(head) else head)
    return out


def printed(program, *arguments, timeout=280, **environment):
    """Return what a program prints that another process runs, which has to end well.

    A variable of the environment that is None is not set there.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
