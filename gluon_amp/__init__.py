"""gluon_amp: mixed precision for MXNet Gluon and Module."""

from gluon_amp import compat

compat.import_mxnet()

__version__ = "0.1.0"
