"""Mixed precision for Apache MXNet 1.9.1: Gluon and Module.

    import gluon_amp as amp  # before mxnet

    amp.cast(net, "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for data, label in batches:
        with autograd.record():
            loss = loss_fn(net(data), label)
        trainer.backward(loss)
        report = trainer.step(batch_size)

- To cast: `cast`, `Policy`, `policy_of`, `describe`.
- To train: `Trainer`, `StepReport`, `DynamicLossScale` and its relatives, `optimizer`,
  `EMA` for averaged weights, `input_gradient` for gradient penalties.
- To save: `save_checkpoint`, `load_checkpoint`.
- To leave MXNet: `export_onnx`, `torch_state_dict`, `torch_training_state`.
- To understand: `check`, `diagnose`, `suggest_policy`, `gradient_report`, `watch`,
  `doctor`, `accumulation_dtype`, `float_table`, `bits`.
- With Symbol and Module: `symbolic`. With an Estimator: `BatchProcessor`, `GradientUpdateHandler`,
  `CheckpointHandler`. After `mxnet.contrib.amp`: `init_trainer`, `scale_loss`, `unscale`.
"""

import importlib
from typing import TYPE_CHECKING, Any, List

from gluon_amp.base import startup

startup.import_mxnet()

from gluon_amp import kernels, optimizer
from gluon_amp.base.dtypes import bits, float_table
from gluon_amp.casting.cast import cast, policy_of
from gluon_amp.policy import Policy
from gluon_amp.trainer import StepReport, Trainer
from gluon_amp.trainer.loss_scale import DynamicLossScale, LossScale, NoLossScale, StaticLossScale

if TYPE_CHECKING:  # see `__getattr__`
    from gluon_amp import symbolic
    from gluon_amp.casting.input_gradient import input_gradient
    from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
    from gluon_amp.checkpoint.estimator import (
        BatchProcessor,
        CheckpointHandler,
        GradientUpdateHandler,
    )
    from gluon_amp.handover.to_onnx.export import export_onnx
    from gluon_amp.handover.torch_state import torch_state_dict
    from gluon_amp.handover.torch_training import torch_training_state
    from gluon_amp.inspection.accumulation_dtype import accumulation_dtype
    from gluon_amp.inspection.check import check
    from gluon_amp.inspection.describe import describe
    from gluon_amp.inspection.diagnose import Diagnosis, diagnose
    from gluon_amp.inspection.doctor import doctor
    from gluon_amp.inspection.gradient_report import gradient_report
    from gluon_amp.inspection.suggest import suggest_policy
    from gluon_amp.inspection.watch import watch
    from gluon_amp.trainer.contrib_amp import init_trainer, scale_loss, unscale
    from gluon_amp.trainer.ema import EMA

kernels.load_if_built()

__version__ = "0.1.0"

__all__ = [
    "EMA",
    "BatchProcessor",
    "CheckpointHandler",
    "Diagnosis",
    "DynamicLossScale",
    "GradientUpdateHandler",
    "LossScale",
    "NoLossScale",
    "Policy",
    "StaticLossScale",
    "StepReport",
    "Trainer",
    "accumulation_dtype",
    "bits",
    "cast",
    "check",
    "describe",
    "diagnose",
    "doctor",
    "export_onnx",
    "float_table",
    "gradient_report",
    "init_trainer",
    "input_gradient",
    "load_checkpoint",
    "optimizer",
    "policy_of",
    "save_checkpoint",
    "scale_loss",
    "suggest_policy",
    "symbolic",
    "torch_state_dict",
    "torch_training_state",
    "unscale",
    "watch",
]

# What a training can do without, by the module that has it: it is imported when it is first used.
_WHEN_USED = {
    "BatchProcessor": "checkpoint.estimator",
    "CheckpointHandler": "checkpoint.estimator",
    "Diagnosis": "inspection.diagnose",
    "EMA": "trainer.ema",
    "GradientUpdateHandler": "checkpoint.estimator",
    "accumulation_dtype": "inspection.accumulation_dtype",
    "check": "inspection.check",
    "describe": "inspection.describe",
    "diagnose": "inspection.diagnose",
    "doctor": "inspection.doctor",
    "export_onnx": "handover.to_onnx.export",
    "gradient_report": "inspection.gradient_report",
    "init_trainer": "trainer.contrib_amp",
    "input_gradient": "casting.input_gradient",
    "load_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
    "scale_loss": "trainer.contrib_amp",
    "suggest_policy": "inspection.suggest",
    "torch_state_dict": "handover.torch_state",
    "torch_training_state": "handover.torch_training",
    "unscale": "trainer.contrib_amp",
    "watch": "inspection.watch",
}


if not TYPE_CHECKING:  # otherwise a checker would accept every name

    def __getattr__(name: str) -> Any:
        if name == "symbolic":
            return importlib.import_module("gluon_amp.symbolic")
        if name in _WHEN_USED:
            module = importlib.import_module(f"gluon_amp.{_WHEN_USED[name]}")
            return globals().setdefault(name, getattr(module, name))
        from gluon_amp.base import migration

        raise migration.unknown_name(name, __all__)


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
