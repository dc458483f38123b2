"""The log of a run: GluonCV's lines byte for byte, some more, and a progress bar.

Source of the first four lines: gluon-cv ``scripts/classification/imagenet/train_imagenet.py``.
People and dashboards search for them in files, so other numbers have lines of their own. On a
terminal, one line for each epoch replaces all of them. Epochs are counted from 0, as by GluonCV.
"""

import contextlib
import json
import logging
import math
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

from gluon_amp.files.log_files import LogFiles, event_writer
from gluon_amp.training.command_line import discard_output, tqdm

BATCH = "Epoch[%d] Batch [%d]\tSpeed: %f samples/sec\t%s=%f\tlr=%f"
TRAINING = "[Epoch %d] training: %s=%f"
SPEED = "[Epoch %d] speed: %d samples/sec\ttime cost: %f"
VALIDATION = "[Epoch %d] validation: err-top1=%f err-top5=%f"

AVERAGED = "[Epoch %d] validation of the average: err-top1=%f err-top5=%f"
SKIPPED = "Epoch[%d] Batch [%d] skipped: loss scale %g -> %g, overflow in %s%s"
LOSS_SCALE = "[Epoch %d] loss=%f\tloss scale: %g\tskipped steps: %d (%d in all)"
VALIDATED = "[Epoch %d] validated %d/%d"
WAITED = "[Epoch %d] waited for data: %.0f %% of the time"
INPUT_BOUND = (
    "Loading images slows down training:\n"
    "give --num-workers a thread for each core, pack the images with gluon-amp\n"
    "pack, or resize them once to 256 pixels; --test-io measures loading."
)
UNREADABLE = "[Epoch %d] %s"

logger = logging.getLogger("gluon_amp.training.runs")

Column = Tuple[str, int, str]

# Names, widths and formats of the columns of an epoch's line on a terminal
COLUMNS: Tuple[Column, ...] = (
    ("epoch", 5, "{}"),
    ("loss", 9, "{:.4f}"),  # of training
    ("top-1", 10, "{:.2f} %"),  # of validation
    ("lr", 10, "{:.3g}"),
    ("scale", 8, "{}"),
    ("skips", 7, "{}"),
    ("speed", 15, "{}"),
    ("waited", 8, "{:.0f} %"),  # for data, of the time
)
# With --ema-decay, top-1 of the averaged weights, in place of the last of these
EMA = ("ema", 9, "{:.2f} %")


def details(message: str, *values: object) -> None:
    """Log a line for files and for programs that read them; a terminal does not show it."""
    logger.info(message, *values, extra={"terminal": False})


def for_terminal(message: str, *values: object) -> None:
    """Log a line that only a terminal shows."""
    logger.info(message, *values, extra={"terminal": True})


def epoch_head(columns: Sequence[Column]) -> str:
    """Return the line above those of the epochs."""
    return "".join(f"{name:>{width}}" for name, width, _ in columns)


def epoch_line(columns: Sequence[Column], values: Sequence[object]) -> str:
    """Return the line of an epoch; a value that is None is a dash."""
    pairs = ((width, form, value) for (_, width, form), value in zip(columns, values))
    cells = (f"{'-' if v is None else form.format(v):>{width}}" for width, form, v in pairs)
    return "".join(cells)


def _shown(terminal: bool) -> Callable[[logging.LogRecord], bool]:
    """Return the filter of a handler: lines for its kind of reader, and those for everyone."""
    return lambda record: getattr(record, "terminal", terminal) == terminal


def _gives_up(handler: logging.Handler, name: str) -> None:
    """Warn that a handler cannot write any more; training continues without it."""
    logger.removeHandler(handler)
    reason = getattr(sys.exc_info()[1], "strerror", None)
    logger.warning("%s cannot be written any more (%s): training continues.", name, reason)


class _AboveBar(logging.Handler):
    """Prints each record on standard output, above the progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm().write(self.format(record), file=sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:  # its reader has left, so the run ends
            raise
        except OSError:
            _gives_up(self, "standard output")
            discard_output()


class _File(logging.FileHandler):
    """Appends records to a file."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        _gives_up(self, "--logging-file")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def to_stdout(file: Optional[Path] = None, quiet: bool = False) -> Iterator[None]:
    """Print log messages and append them to a file; if `quiet`, only print warnings."""
    handlers: List[logging.Handler] = [_AboveBar()]
    handlers[0].addFilter(_shown(terminal=sys.stdout.isatty()))
    if file is not None and not quiet:
        handlers.append(_File(file, encoding="utf-8"))
        handlers[1].addFilter(_shown(terminal=False))
    level, propagate = logger.level, logger.propagate
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(level)
        logger.propagate = propagate


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Disable the log in a with block."""
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


class Records(LogFiles):
    """Appends the numbers of a run as lines of JSON to a file, and writes them for TensorBoard."""

    def __init__(self, file: Optional[Path] = None, tensorboard: Optional[Path] = None):
        super().__init__("--log-json or --tensorboard", logger)
        self.file = open(file, "a", encoding="utf-8") if file else None  # noqa: SIM115
        self.writer = event_writer(tensorboard, "--tensorboard") if tensorboard else None

    def write(self, kind: str, step: int, **values: float) -> None:
        """Write a 'batch', 'epoch' or 'validation' record; `step` is the number of steps so far.

        JSON has no infinities and no NaN, so these become null.
        """
        plain = {k: v if math.isfinite(v) else None for k, v in values.items()}
        with self.writing():
            if self.file:
                self.file.write(json.dumps({"record": kind, "step": step, **plain}) + "\n")
                self.file.flush()
            if self.writer:
                for name, value in values.items():
                    if name not in ("epoch", "batch", "images"):
                        self.writer.add_scalar(f"{kind}/{name}", value, step)


def bar(total: int, epoch: int, epochs: int, done: int = 0, unit: str = "images") -> Any:
    """Return a progress bar for one epoch; it is shown if standard error is a terminal."""
    return tqdm()(
        total=total,
        initial=done,
        desc=f"epoch {epoch}/{epochs - 1}",
        unit=f" {unit}",
        leave=False,
        disable=None,
        dynamic_ncols=True,
    )
