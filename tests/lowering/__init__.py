"""Tests of gluon_amp/lowering."""

import os
import subprocess
import sys

from gluon_amp.graph import from_json, to_json
from gluon_amp.lowering import lower
from gluon_amp.lowering.typed_graph import TypedGraph
from gluon_amp.policy import Policy, cast_pass


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


def printed(program, *arguments, timeout=280, **environment):
    """Return what a program prints that another process runs, which has to end well."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
