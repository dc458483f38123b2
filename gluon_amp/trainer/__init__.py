"""One training step: loss scale, overflow check, update or skip."""

from gluon_amp.trainer.trainer import (
    BY_DTYPE,
    MAX_CONSECUTIVE_SKIPS,
    ScaledSteps,
    StepReport,
    Trainer,
)

__all__ = ["BY_DTYPE", "MAX_CONSECUTIVE_SKIPS", "ScaledSteps", "StepReport", "Trainer"]
