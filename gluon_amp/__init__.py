"""gluon_amp: mixed precision for MXNet Gluon and Module."""

from gluon_amp import compat

compat.import_mxnet()

from gluon_amp import optimizer
from gluon_amp.cast import cast
from gluon_amp.describe import describe
from gluon_amp.loss_scale import DynamicLossScale, NoLossScale, StaticLossScale
from gluon_amp.policy import Policy
from gluon_amp.trainer import StepReport, Trainer

__version__ = "0.1.0"

__all__ = [
    "DynamicLossScale",
    "NoLossScale",
    "Policy",
    "StaticLossScale",
    "StepReport",
    "Trainer",
    "cast",
    "describe",
    "optimizer",
]
