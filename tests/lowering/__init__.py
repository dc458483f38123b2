"""Tests of gluon_amp/lowering."""

from gluon_amp.policy.graph import from_json, to_json


def on_symbols(rewrite):
    """Return a rewrite of graphs as a function of symbols, as `lower` applies it."""

    def rewritten(symbol, *arguments):
        graph = to_json(symbol)
        result = rewrite(graph, *arguments)
        return symbol if result is graph else from_json(result, like=symbol)

    return rewritten
