"""Files of numbers beside a training: lines, and TensorBoard's events."""

import contextlib
import logging
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Iterator, Optional, Union

from gluon_amp.base.messages import from_extra

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


class LogFiles:
    """Base class of what writes to a file and for TensorBoard; a subclass opens one or both.

    They matter less than training: if one cannot be written any more, the logger warns, with a name
    as the subject of the sentence, and both are closed.
    """

    def __init__(self, name: str, logger: logging.Logger) -> None:
        self.name, self.logger = name, logger
        self.file: Optional[IO[Any]] = None
        self.writer: Optional[SummaryWriter] = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Write in a with block; after an `OSError`, `file` and `writer` are None."""
        try:
            yield
        except OSError as error:
            warning = "%s cannot be written any more (%s): training continues."
            self.logger.warning(warning, self.name, error.strerror)
            outputs, self.file, self.writer = (self.file, self.writer), None, None
            for output in outputs:
                with contextlib.suppress(OSError):
                    if output:
                        output.close()

    def close(self) -> None:
        """Write what is buffered, and close the files."""
        with self.writing():
            for output in (self.file, self.writer):
                if output:
                    output.close()


def event_writer(folder: Union[str, Path], option: str) -> "SummaryWriter":
    """Return TensorBoard's writer for a folder that an option names.

    If tensorboardX is not installed, that is a `UsageError`.
    """
    with from_extra("tensorboard", f"{option} needs tensorboardX"):
        from tensorboardX import SummaryWriter
    return SummaryWriter(str(folder))
