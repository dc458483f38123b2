"""Mixed precision for the Symbol and Module API."""

from gluon_amp.symbolic.module import BucketingModule, Module, convert

__all__ = ["BucketingModule", "Module", "convert"]
