"""One file with the state of a training: parameters, masters, optimizer, loss scale, counters."""

from gluon_amp.checkpoint.load import load_checkpoint, read_extra
from gluon_amp.checkpoint.save import save_checkpoint

__all__ = ["load_checkpoint", "read_extra", "save_checkpoint"]
