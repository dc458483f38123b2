"""Mixed precision for the Symbol and Module API."""

from gluon_amp.symbolic.bucketing import BucketingModule
from gluon_amp.symbolic.conversion import convert
from gluon_amp.symbolic.module import Module

__all__ = ["BucketingModule", "Module", "convert"]
