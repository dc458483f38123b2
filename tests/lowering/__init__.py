"""Tests of gluon_amp/lowering."""

import os
import subprocess
import sys

from gluon_amp.graph import from_json, to_json
from gluon_amp.lowering.typed_graph import TypedGraph


def on_symbols(rewrite):
    """Return a rewrite of graphs as a function of symbols, as `lower` applies it."""

    def rewritten(symbol, dtypes, *arguments):
        graph = TypedGraph.of(to_json(symbol), dtypes)
        result = rewrite(graph, *arguments)
        return symbol if result is graph else from_json(result.json, like=symbol)

    return rewritten


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
