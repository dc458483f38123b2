"""gluon_amp: mixed precision for MXNet Gluon and Module."""

from gluon_amp import compat

compat.import_mxnet()

from gluon_amp.cast import cast, describe
from gluon_amp.policy import Policy

__version__ = "0.1.0"

__all__ = ["Policy", "cast", "describe"]
