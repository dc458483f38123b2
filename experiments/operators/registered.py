"""MXNet's registered operators, their inputs and arguments, as its C interface lists them."""

import ctypes
from typing import Dict, NamedTuple, Tuple

from gluon_amp.base import registry
from gluon_amp.base.mxnet_internals import LIB, check_call

from mxnet.base import OpHandle, py_str


class Operator(NamedTuple):
    """One operator; `arguments` are (name, type), as in `('p', 'float, optional, default=0.5')`.

    `count` names the attribute that counts the inputs, if an operator has any number of them.
    """

    handle: OpHandle
    canonical: str
    inputs: Tuple[str, ...]
    count: str
    arguments: Tuple[Tuple[str, str], ...]


def registered() -> Dict[str, Operator]:
    """Return all registered operators by name, including aliases."""
    # without gluon_amp's operators, which are registered if another test has loaded them
    return {name: _operator(name) for name in registry.names() if "_gluon_amp_" not in name}


def _operator(name: str) -> Operator:
    handle = registry.handle(name)
    canonical, text, count_attr, returns = (ctypes.c_char_p() for _ in range(4))
    count = ctypes.c_uint()
    args, types, texts = (ctypes.POINTER(ctypes.c_char_p)() for _ in range(3))
    check_call(
        LIB.MXSymbolGetAtomicSymbolInfo(
            handle,
            *map(ctypes.byref, (canonical, text, count, args, types, texts, count_attr, returns)),
        )
    )
    fields = [(py_str(args[i]), py_str(types[i])) for i in range(count.value)]
    inputs = [arg for arg, kind in fields if "NDArray" in kind or "Symbol" in kind]
    arguments = [(arg, kind) for arg, kind in fields if arg not in inputs]
    return Operator(
        handle,
        py_str(canonical.value),
        tuple(inputs),
        py_str(count_attr.value or b""),
        tuple(arguments),
    )
