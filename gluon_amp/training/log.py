"""What a run says while it trains: GluonCV's lines byte for byte, and a progress bar between them.

Source of the first four lines: gluon-cv ``scripts/classification/imagenet/train_imagenet.py``.
People and dashboards search for them, so what GluonCV does not log has lines of its own.
"""

import contextlib
import logging
import sys
from typing import Iterator

from gluon_amp.training.options import UsageError

BATCH = "Epoch[%d] Batch [%d]\tSpeed: %f samples/sec\t%s=%f\tlr=%f"
TRAINING = "[Epoch %d] training: %s=%f"
SPEED = "[Epoch %d] speed: %d samples/sec\ttime cost: %f"
VALIDATION = "[Epoch %d] validation: err-top1=%f err-top5=%f"

SKIPPED = "Epoch[%d] Batch [%d] skipped: loss scale %g -> %g, overflow in %s%s"
LOSS_SCALE = "[Epoch %d] loss=%f\tloss scale: %g\tskipped steps: %d (%d in all)"
VALIDATED = "[Epoch %d] validated %d/%d"

logger = logging.getLogger("gluon_amp.training")


class _AboveBar(logging.Handler):
    """Prints each record on standard output, above a progress bar that may be there."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm().write(self.format(record), file=sys.stdout)
        sys.stdout.flush()


def tqdm() -> type:
    """Return the progress bar class.

    Raises
    ------
    UsageError
        tqdm is not installed.
    """
    try:
        from tqdm import tqdm as bar
    except ImportError:
        raise UsageError("tqdm is not installed: run `pip install 'gluon-amp[data]'`.") from None
    return bar


@contextlib.contextmanager
def to_stdout() -> Iterator[None]:
    """Print what is logged on standard output, as it is."""
    handler = _AboveBar()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def bar(total: int, epoch: int, epochs: int, unit: str = "img"):
    """Return a progress bar for one epoch on standard error, absent where that is no terminal."""
    return tqdm()(
        total=total,
        desc=f"epoch {epoch + 1}/{epochs}",
        unit=unit,
        leave=False,
        disable=None,
        dynamic_ncols=True,
    )
