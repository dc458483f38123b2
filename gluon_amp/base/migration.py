"""The names of `mxnet.contrib.amp` that are gone, and what replaces them here."""

import sys
from fnmatch import fnmatchcase
from typing import Iterable

from gluon_amp.base.messages import did_you_mean

# Pattern of names that are gone, and what to use instead: as the table in
# docs/guide/from_contrib_amp.md, which has more rows
REPLACEMENTS = {
    "init": "amp.cast(net, 'mixed_float16'), for one net, at any time; "
    "amp.cast(net, 'float32') undoes it",
    "loss_scaler": "trainer.loss_scale; the old attribute reads and sets it too",
    "convert_bucketing_module": "amp.symbolic.BucketingModule",
    "convert_hybrid_block": "amp.cast(net, policy), and it still trains",
    "convert_*": "amp.symbolic.convert(symbol, policy)",
    "list*": "amp.describe(net, data) for a net, amp.Policy.parse('float16').why(op) "
    "for an operator",
}


def unknown_name(name: str, known: Iterable[str]) -> Exception:
    """Return the error for a name that `gluon_amp` does not have, for its `__getattr__` to raise.

    For a name of `mxnet.contrib.amp` the message names the replacement, for any other name the
    similar ones.
    """
    new = next((new for gone, new in REPLACEMENTS.items() if fnmatchcase(name, gone)), None)
    if new is None:
        return AttributeError(f"gluon_amp has no {name!r}{did_you_mean(name, known)}.")
    message = f"gluon_amp has no {name!r} of mxnet.contrib.amp: use {new}."
    # `from gluon_amp import init` asks whether there is such an attribute, and drops our message if
    # there is none.
    imported = sys._getframe(2).f_code.co_name == "_handle_fromlist"
    return ImportError(message, name=name) if imported else AttributeError(message)
