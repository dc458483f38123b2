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
  `input_gradient` for gradient penalties.
- To save: `save_checkpoint`, `load_checkpoint`.
- To understand: `check`, `diagnose`, `gradient_report`, `watch`, `doctor`,
  `accumulation_dtype`, `float_table`, `bits`.
- With Symbol and Module: `symbolic`. With an Estimator: `BatchProcessor`, `GradientUpdateHandler`,
  `CheckpointHandler`. After `mxnet.contrib.amp`: `init_trainer`, `scale_loss`, `unscale`.
"""

from gluon_amp.base import startup

startup.import_mxnet()

from gluon_amp import kernels, optimizer, symbolic
from gluon_amp.base import migration
from gluon_amp.base.dtypes import bits, float_table
from gluon_amp.casting.cast import cast, policy_of
from gluon_amp.casting.input_gradient import input_gradient
from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
from gluon_amp.checkpoint.estimator import BatchProcessor, CheckpointHandler, GradientUpdateHandler
from gluon_amp.inspection.accumulation_dtype import accumulation_dtype
from gluon_amp.inspection.check import check
from gluon_amp.inspection.describe import describe
from gluon_amp.inspection.diagnose import Diagnosis, diagnose
from gluon_amp.inspection.doctor import doctor
from gluon_amp.inspection.gradient_report import gradient_report
from gluon_amp.inspection.watch import watch
from gluon_amp.policy import Policy
from gluon_amp.trainer import StepReport, Trainer
from gluon_amp.trainer.contrib_amp import init_trainer, scale_loss, unscale
from gluon_amp.trainer.loss_scale import DynamicLossScale, LossScale, NoLossScale, StaticLossScale

kernels.load_if_built()

__version__ = "0.1.0"

__all__ = [
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
    "float_table",
    "gradient_report",
    "init_trainer",
    "input_gradient",
    "load_checkpoint",
    "optimizer",
    "policy_of",
    "save_checkpoint",
    "scale_loss",
    "symbolic",
    "unscale",
    "watch",
]


def __getattr__(name: str):
    raise migration.unknown_name(name, __all__)
