"""One training step: loss scale, overflow check, update or skip."""

from gluon_amp.trainer.report import StepReport
from gluon_amp.trainer.scaled_gradients import BY_DTYPE
from gluon_amp.trainer.scaled_steps import MAX_CONSECUTIVE_SKIPS, ScaledSteps
from gluon_amp.trainer.trainer import Trainer

__all__ = ["BY_DTYPE", "MAX_CONSECUTIVE_SKIPS", "ScaledSteps", "StepReport", "Trainer"]
