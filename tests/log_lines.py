"""A handler that keeps the lines of a log."""

import logging


class Lines(logging.Handler):
    """Collects the lines of a log in `lines`."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())
