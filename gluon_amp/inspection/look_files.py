"""The rows of looks as lines of JSON and for TensorBoard."""

import json
import logging
import math
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Tuple, Union

from gluon_amp.base.messages import UsageError
from gluon_amp.files.log_files import LogFiles, event_writer
from gluon_amp.inspection.format_effects import Effect
from gluon_amp.inspection.look import Row

logger = logging.getLogger("gluon_amp")

SHARES = ("underflow", "overflow", "error")  # of each format, for TensorBoard


class LookFiles(LogFiles):
    """Appends rows to files; raises `UsageError` if they cannot be opened."""

    def __init__(
        self, file: Union[str, Path, None] = None, tensorboard: Union[str, Path, None] = None
    ) -> None:
        super().__init__("The files of watch()", logger)
        if tensorboard is not None:
            self.writer = event_writer(tensorboard, "watch(tensorboard=...)")
        if file is not None:
            try:
                self.file = open(file, "a+b")  # noqa: SIM115
                _end_last_line(self.file)
            except OSError as error:
                raise UsageError(f"watch() cannot write {file}: {error.strerror}.") from None

    def write(self, rows: Iterable[Row]) -> None:
        """Append the rows of a look."""
        with self.writing():
            for row in rows:
                if self.file:
                    self.file.write(json.dumps(_plain(row)).encode() + b"\n")
                if self.writer:
                    for tag, value in _scalars(row):
                        self.writer.add_scalar(tag, value, row.step)
            for output in filter(None, (self.file, self.writer)):
                output.flush()


def _scalars(row: Row) -> Iterator[Tuple[str, float]]:
    """Yield name and value of what TensorBoard draws of a row."""
    for name, effect in row.formats.items():
        for share in SHARES:
            yield f"{name}/{row.direction}/{label(row)}/{share}", getattr(effect, share)


def label(row: Row) -> str:
    """Return the name of a row's tensor, as in `'features.0.weight'`."""
    return ".".join(filter(None, (row.layer, row.tensor)))


def read(path: Path) -> List[Row]:
    """Return the rows of a file; lines that were not finished are left out.

    Raises `UsageError` for a file that cannot be read or holds something else.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"watch() cannot read {path}: {error.strerror}.") from None
    rows = []
    for number, line in enumerate(text.split(b"\n"), 1):
        row = _row(line)
        if row is not None:
            rows.append(row)
        elif line and not line.startswith(b'{"step":'):  # a line that was not finished
            raise UsageError(
                f"Line {number} of {path} is no line of watch(): pass the file of an earlier run, "
                "or a new name."
            )
    return rows


def _end_last_line(file) -> None:
    """Begin a new line if a run was killed while it wrote the last one."""
    size = file.seek(0, 2)
    if size:
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.write(b"\n")


def _plain(row: Row) -> dict:
    """Return a row as JSON has it, without infinities and NaN."""
    values = row._asdict()
    values["largest"] = row.largest if math.isfinite(row.largest) else None
    return {**values, "formats": {name: e._asdict() for name, e in row.formats.items()}}


def _row(line: bytes) -> Optional[Row]:
    """Return the row of a line, or None if the line is something else."""
    try:
        values = json.loads(line)
        values["formats"] = {name: Effect(**e) for name, e in values["formats"].items()}
        values["largest"] = math.inf if values["largest"] is None else values["largest"]
        return Row(**values)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
