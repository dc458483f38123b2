"""What runs in which dtype, as data, and the pass that applies it to a graph."""

from gluon_amp.policy.decision import Decision
from gluon_amp.policy.policy import FUSED, PRESETS, STRING_KEYS, Policy, near_preset

__all__ = ["FUSED", "PRESETS", "STRING_KEYS", "Decision", "Policy", "near_preset"]
