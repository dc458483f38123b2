"""The names of `mxnet.contrib.amp`, and what replaces them here: the guide's table, as data."""

import re
import sys
from fnmatch import fnmatchcase
from typing import Iterable, Optional

from gluon_amp.base.messages import did_you_mean

# The rows of the table in docs/guide/from_contrib_amp.md, in Markdown. The first row whose left
# side has `amp.NAME` is the answer to NAME, so its right side can follow the word "use".
ROWS = (
    (
        "`amp.init()`, before the net is built, for the whole process",
        "`amp.cast(net, 'mixed_float16')`, for one net, at any time; "
        "`amp.cast(net, 'float32')` undoes it",
    ),
    ("`amp.init(target_dtype='bfloat16')`", "`amp.cast(net, 'bfloat16')`"),
    (
        "`amp.init(fp32_ops=[...])` replaces the lists",
        "`amp.Policy.parse('mixed_float16').pin(ops=[...])` adds to them",
    ),
    (
        "`net.cast('float16')` and `multi_precision=True`",
        "`amp.cast(net, 'float16')` and `amp.Trainer`",
    ),
    (
        "`gluon.Trainer(..., update_on_kvstore=False)`, `amp.init_trainer(trainer)`",
        "`amp.Trainer(...)`, or `amp.init_trainer(trainer)` on any trainer, Horovod's too",
    ),
    (
        "`with amp.scale_loss(loss, trainer) as scaled: autograd.backward(scaled)`",
        "`trainer.backward(loss)`, or the same lines",
    ),
    ("`trainer.step(n)`", "the same; it returns a `StepReport`"),
    (
        "`amp.unscale(trainer)`, then clip by hand",
        "`trainer.clip_global_norm(max_norm)`, or the same lines",
    ),
    (
        "`trainer._amp_loss_scaler`, an `amp.loss_scaler.LossScaler`",
        "`trainer.loss_scale`; the old attribute reads and sets it too",
    ),
    (
        "no argument for the loss scale",
        "`loss_scale=` takes `'dynamic'`, a number, `None` or a scale",
    ),
    (
        "`trainer.save_states` forgets the scale",
        "it keeps it; `load_states` also reads the states of a stock `gluon.Trainer`, "
        "in mid-training",
    ),
    ("`amp.convert_model`, `amp.convert_symbol`", "`amp.symbolic.convert(symbol, policy)`"),
    ("`amp.convert_hybrid_block(net)`", "`amp.cast(net, policy)`, and it still trains"),
    ("`amp.convert_bucketing_module`", "`amp.symbolic.BucketingModule`"),
    (
        "`amp.list_lp16_ops()` and the other `amp.list_*()`, `amp.lists`",
        "`amp.describe(net, data)` for a net, `amp.Policy.parse('float16').why(op)` "
        "for an operator",
    ),
)


def replacement(name: str) -> Optional[str]:
    """Return what to use in place of a name of `mxnet.contrib.amp`, in plain text, or None."""
    for old, new in ROWS:
        if any(fnmatchcase(name, pattern) for pattern in re.findall(r"\bamp\.([\w*]+)", old)):
            return new.replace("`", "")
    return None


def unknown_name(name: str, known: Iterable[str]) -> Exception:
    """Return the error for a name that `gluon_amp` does not have, for its `__getattr__` to raise.

    For a name of `mxnet.contrib.amp` the message names the replacement, for any other name the
    similar ones.
    """
    new = replacement(name)
    if new is None:
        return AttributeError(f"gluon_amp has no {name!r}{did_you_mean(name, known)}.")
    message = f"gluon_amp has no {name!r} of mxnet.contrib.amp: use {new}."
    # `from gluon_amp import init` asks whether there is such an attribute, and drops our message if
    # there is none.
    imported = sys._getframe(2).f_code.co_name == "_handle_fromlist"
    return ImportError(message, name=name) if imported else AttributeError(message)
