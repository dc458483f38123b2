"""The log of a run: one line for each epoch, some more in files, and a progress bar.

    Epoch 3/24  batch 6/6  loss 0.0094  top-1 99.30 %  lr 0.0571  1,833 img/s  ETA 0:18

Lines of batches and skipped steps are for files: on a terminal the progress bar stands for them.
Epochs and batches are counted from 1.
"""

import contextlib
import json
import logging
import math
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, List, Mapping, Optional

from gluon_amp.files.log_files import LogFiles, event_writer
from gluon_amp.training.command_line import WIDTH, discard_output, tqdm

SKIPPED = "skipped: loss scale %g -> %g, overflow in %s%s"
INPUT_BOUND = (
    "Loading images slows down training:\n"
    "give --num-workers a thread for each core, pack the images with gluon-amp\n"
    "pack, or resize them once to 256 pixels; --test-io measures loading."
)

logger = logging.getLogger("gluon_amp.training.runs")


def details(message: str, *values: object) -> None:
    """Log a line for files and for programs that read them; a terminal does not show it."""
    logger.info(message, *values, extra={"terminal": False})


def percent(share: float) -> str:
    """Return a share from 0 to 1 as text."""
    return f"{100 * share:.2f} %"


def duration(seconds: float) -> str:
    """Return a time as ``m:ss`` or ``h:mm:ss``; one that is not known as a dash."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def line(place: str, values: Mapping[str, Optional[str]], width: float = WIDTH) -> str:
    """Return a place, such as an epoch, and named values, in lines of at most `width` columns.

    A value that is None is left out; a name that begins with an underscore is not shown.
    """
    lines = [place]
    for name, value in values.items():
        text = value if name.startswith("_") else f"{name.replace('_', '-')} {value}"
        if value is None:
            continue
        if len(lines[-1]) + 2 + len(text or "") > width:
            lines.append("")
        lines[-1] += f"  {text}"
    return "\n".join(lines)


def place(epoch: int, epochs: int, batch: Optional[int] = None, batches: int = 0) -> str:
    """Return where a run is, counted from 1; the arguments are counted from 0."""
    where = "" if batch is None else f"  batch {batch + 1}/{batches}"
    return f"Epoch {epoch + 1}/{epochs}{where}"


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


def bar(total: int, epoch: int, epochs: int, done: int = 0, unit: str = "img") -> Any:
    """Return a progress bar for one epoch; it is shown if standard error is a terminal."""
    return tqdm()(
        total=total,
        initial=done,
        desc=place(epoch, epochs),
        unit=f" {unit}",
        leave=False,
        disable=None,
        dynamic_ncols=True,
    )
