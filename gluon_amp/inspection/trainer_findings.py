"""What a trainer does that costs accuracy in float16, or leaves parameters untrained."""

import os
from typing import Container, Iterator

import numpy as np

from gluon_amp.base.messages import first_few
from gluon_amp.casting.parameters import contexts_of, dtype_of
from gluon_amp.casting.statistics import is_statistic
from gluon_amp.inspection.findings import Finding

from mxnet import gluon


def trainer_findings(
    net: gluon.Block, trainer: gluon.Trainer, written: Container[str] = ()
) -> Iterator[Finding]:
    """Yield what `check` finds in a trainer of a net, some of whose parameters operators write."""
    parameters, optimizer = trainer._params, trainer.optimizer
    epsilon = getattr(optimizer, "epsilon", None)
    # without float32 masters the update kernels cast epsilon to float16
    low = any(dtype_of(p) == "float16" for p in parameters if p.grad_req != "null")
    if low and epsilon and not optimizer.multi_precision and np.float16(epsilon) == 0:
        name = type(optimizer).__name__
        problem = f"{name}'s epsilon {epsilon:g} is 0 in float16, so the update divides by 0"
        fix = "use amp.Trainer, which updates float32 masters, or multi_precision=True"
        yield Finding("epsilon", "", problem, fix)
    if _updates_on_kvstore(trainer):
        problem = "the trainer updates on the kvstore, before an overflow can be seen"
        fix = "use amp.Trainer, or gluon.Trainer(..., update_on_kvstore=False)"
        yield Finding("kvstore", "", problem, fix)
    still = [p.name for p in parameters if p.grad_req == "null" and not is_statistic(p)]
    frozen = first_few([name for name in still if name not in written], limit=2)
    if frozen:
        problem = f"the trainer holds {frozen} with grad_req='null', never updated"
        fix = "set grad_req='write' to train them, or leave them out of the trainer"
        yield Finding("frozen", "", problem, fix)
    held = set(map(id, parameters))
    trainable = (p for p in net.collect_params().values() if p.grad_req != "null")
    not_held = first_few([p.name for p in trainable if id(p) not in held], limit=2)
    if not_held:
        problem = f"the trainer does not hold {not_held}, so they stay as they are"
        fix = "give it net.collect_params(), or set grad_req='null' to freeze them on purpose"
        yield Finding("frozen", "", problem, fix)


# Stock `gluon.Trainer` shows neither its parameters nor its kvstore in public.


def _updates_on_kvstore(trainer: gluon.Trainer) -> bool:
    """Return whether a trainer updates there; before its first step, whether it will."""
    if trainer._kv_initialized:
        return bool(trainer._update_on_kvstore)
    settings = trainer._kvstore_params
    if settings["update_on_kvstore"] is not None:
        return settings["update_on_kvstore"]
    if settings["kvstore"] is None or os.environ.get("MXNET_UPDATE_ON_KVSTORE", "1") == "0":
        return False
    devices = max(map(len, map(contexts_of, trainer._params)), default=0)
    return devices > 1 or "dist" in str(settings["kvstore"])
