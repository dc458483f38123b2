"""Names of `mxnet.contrib.amp` and of other frameworks, and what replaces them here."""

import sys
from fnmatch import fnmatchcase
from typing import Dict, Iterable

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
CAST = "amp.cast(net, 'mixed_float16'), once"
# The same for what others type first: rows of docs/guide/from_torch_and_keras.md
SYSTEMS: Dict[str, Dict[str, str]] = {
    "mxnet.contrib.amp": REPLACEMENTS,
    "torch.amp": {
        "autocast": CAST,
        "GradScaler": "amp.Trainer(..., loss_scale='dynamic'), the default for float16",
        "half": "amp.cast(net, 'float16')",
    },
    "Keras": {
        "set_global_policy": "amp.cast(net, 'mixed_float16'), for one network",
        "mixed_precision": "amp.cast(net, 'mixed_float16'), for one network",
        "LossScaleOptimizer": "amp.Trainer(..., loss_scale='dynamic'), the default for float16",
    },
    "Apex": {"initialize": CAST + ", then amp.Trainer(net.collect_params(), ...)"},
    "PyTorch": {"torch": "amp.torch_state_dict(net, module, data) to leave MXNet"},
}


def unknown_name(name: str, known: Iterable[str]) -> Exception:
    """Return the error for a name that `gluon_amp` does not have, for its `__getattr__` to raise.

    For a name of one of `SYSTEMS` the message names the replacement, for any other name the similar
    ones.
    """
    found = (
        (system, new)
        for system, names in SYSTEMS.items()
        for gone, new in names.items()
        if fnmatchcase(name, gone)
    )
    system, new = next(found, ("", ""))
    if not system:
        return AttributeError(f"gluon_amp has no {name!r}{did_you_mean(name, known)}.")
    message = f"gluon_amp has no {name!r} of {system}: use {new}."
    # `from gluon_amp import init` asks whether there is such an attribute, and drops our message if
    # there is none.
    imported = sys._getframe(2).f_code.co_name == "_handle_fromlist"
    return ImportError(message, name=name) if imported else AttributeError(message)
