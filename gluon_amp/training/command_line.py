"""What the programs share: their parser, readers for the values of options, errors and signals.

Importing this file needs the standard library alone.
"""

import argparse
import contextlib
import io
import math
import os
import shutil
import signal
import sys
import textwrap
import threading
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
)

from gluon_amp.base.messages import UsageError, did_you_mean, from_extra

WIDTH = 80  # columns of the help, even on a wider terminal


class HelpFormatter(argparse.HelpFormatter):
    """Breaks lines at `WIDTH` columns, or at those of a narrower terminal, but no names."""

    def __init__(self, prog: str):
        super().__init__(prog, width=min(WIDTH, shutil.get_terminal_size().columns) - 2)

    def _split_lines(self, text: str, width: int) -> List[str]:
        """Break between words, and not within --the-name-of-an-option."""
        return textwrap.wrap(
            " ".join(text.split()), width, break_on_hyphens=False, break_long_words=False
        )

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = (self._split_lines(each, width) for each in text.split("\n\n"))
        return "\n\n".join("\n".join(indent + line for line in lines) for lines in paragraphs)


# What options of a kind have in common, for argparse's `add_argument`.
Kind = Dict[str, Any]

# Adds an option: its flags, separated by spaces, its help, what options of its kind have in common,
# and further arguments of `add_argument`.
Add = Callable[..., None]


def adding_to(group: "argparse._ActionsContainer") -> Add:
    """Return the function that adds an option to a parser, or to a group of its help."""

    def add(flags: str, text: str, kind: Optional[Kind] = None, **settings: Any) -> None:
        group.add_argument(*flags.split(), help=text, **(kind or {}), **settings)

    return add


class Parser(argparse.ArgumentParser):
    """Reports a wrong option in one sentence, without the usage text."""

    def __init__(self, **options: Any):
        super().__init__(**{"formatter_class": HelpFormatter, "allow_abbrev": False, **options})
        self.add = adding_to(self)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        values, unknown = self.parse_known_args(args, namespace)
        if unknown:
            near = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return values

    def error(self, message: str) -> NoReturn:
        line = " ".join(message.split())  # an argument may hold line breaks
        print(f"{self.prog}: {line[:1].lower()}{line[1:]}", file=sys.stderr)
        raise SystemExit(2)


def split_at_dashes(arguments: Sequence[str]) -> Tuple[List[str], Tuple[str, ...]]:
    """Return the arguments before the first ``--``, and those after it."""
    arguments = list(arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], tuple(arguments[end + 1 :])


def tqdm() -> Any:
    """Return the class of a progress bar."""
    with from_extra("data", "tqdm is not installed"):
        from tqdm import tqdm as bar
    return bar


def status_of(program: str, work: Callable[[], Optional[int]], failures: tuple = ()) -> int:
    """Do the work of a program; return its exit status, after an error in one sentence.

    The status is 0 for None, 2 after a `UsageError` or an `OSError`, 130 after Ctrl-C, 141 if the
    reader of the output has left, and after an error in `failures` its `status`, or else 1.
    """
    if sys.stdout is None:  # closed, as by `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may not have all that is printed
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = work() or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        discard_output()
        return 141
    except KeyboardInterrupt as error:
        status, sentence = 130, str(error) or "interrupted."
    except failures as error:
        status, sentence = getattr(error, "status", 1), str(error)
    except UsageError as error:
        status, sentence = 2, str(error)
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""  # a full disk has none
        status, sentence = 2, f"{file}{error.strerror or error}."
    try:
        sys.stdout.flush()
    except OSError:
        discard_output()
    print(f"{program}: {sentence}", file=sys.stderr)
    return status


def discard_output() -> None:
    """Discard what is written to standard output from now on, and what is buffered."""
    # Otherwise Python fails again when it flushes the buffer at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Ctrl-C, what schedulers of jobs send, and what a terminal sends when it is closed
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handling_signals(numbers: Iterable[int], handler: Callable[[int, object], None]) -> Iterator:
    """Handle signals in a with block; one that is ignored, as SIGHUP under nohup, stays ignored.

    Only the main thread may set handlers, so in another one nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers} if main else {}
    handled = [number for number, old in before.items() if old is not signal.SIG_IGN]
    try:
        for number in handled:
            signal.signal(number, handler)
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


# MXNet's operators read sizes as int32 and other numbers as float32; they reject subnormal ones.
LARGEST_INT = 2**31 - 1
LARGEST_FLOAT, SMALLEST_FLOAT = 1e30, 1e-30


def whole(low: int, high: Optional[int] = None) -> Callable[[str], int]:
    """Return a function that reads a whole number from `low` to `high`, both included."""
    most = LARGEST_INT if high is None else high
    bounds = f"a whole number from {low} to {most}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= most:
            open_ended = high is None and value < low
            expected = f"a whole number of at least {low}" if open_ended else bounds
            raise _unexpected(expected, text)
        return value

    return read


def real(
    low: float, high: Optional[float] = None, above: bool = False, below: bool = False
) -> Callable[[str], float]:
    """Return a function that reads a number; `above` and `below` exclude the bounds."""
    most = LARGEST_FLOAT if high is None else high
    start = f"above {low:g}" if above else f"from {low:g}"
    bounds = f"a number {start} {'up to below' if below else 'to'} {most:g}"
    least = bounds if high is not None else f"a number {start if above else f'of at least {low:g}'}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value < math.inf or (above and value == low):
            raise _unexpected(least, text)
        if value > most or (below and value == most):
            raise _unexpected(bounds, text)
        if 0 < abs(value) < SMALLEST_FLOAT:
            raise _unexpected(f"{least}, and no closer to 0 than {SMALLEST_FLOAT:g}", text)
        return value

    return read


def several(
    read: Callable[[str], Any], expected: str, count: Optional[int] = None
) -> Callable[[str], Tuple[Any, ...]]:
    """Return a function that reads `count` values separated by commas; empty text has no values."""

    def read_all(text: str) -> Tuple[Any, ...]:
        try:
            values = tuple(map(read, text.split(",") if text.strip() else ()))
        except argparse.ArgumentTypeError:
            raise _unexpected(expected, text) from None
        if count not in (None, len(values)):
            raise _unexpected(expected, text)
        return values

    return read_all


def path(text: str) -> Path:
    """Read the path of a file or folder, which need not exist; ``~`` is the home folder."""
    try:
        result = Path(text).expanduser()
        os.lstat(result)
    except (FileNotFoundError, NotADirectoryError):
        pass  # reading or writing there reports it, if it matters
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text[:99]!r}: {error.strerror}") from None
    except (RuntimeError, ValueError) as error:  # no such user, a NUL
        raise argparse.ArgumentTypeError(f"{text[:99]!r}: {error}".rstrip(".")) from None
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''")
    return result


def input_file(text: str) -> Path:
    """Read the path of an input file; a FIFO is an error, as reading it may never end."""
    result = path(text)
    if result.exists() and not result.is_file():
        raise argparse.ArgumentTypeError(f"{result} is not a regular file")
    return result


def output_file(text: str) -> Path:
    """Read the path of an output file; it must be possible to write it."""
    result = path(text)
    problem = ""
    if result.is_dir():
        problem = "is a directory, expected a file"
    elif not result.parent.is_dir():
        problem = f"cannot be written: there is no directory {result.parent}"
    elif not os.access(result if result.exists() else result.parent, os.W_OK):
        problem = "cannot be written: permission denied"
    if problem:
        raise argparse.ArgumentTypeError(f"{result} {problem}")
    return result


def _unexpected(expected: str, text: str) -> argparse.ArgumentTypeError:
    shown = text if len(text) < 100 else f"{text[:99]}…"
    return argparse.ArgumentTypeError(f"expected {expected}, got {shown!r}")


positive_int = whole(1)
natural = whole(0)
threads = whole(0, 1024)
non_negative = real(0)
positive = real(0, above=True)
share = real(0, 1, below=True)

SWITCH: Kind = {"action": "store_true"}
COUNT: Kind = {"type": positive_int, "metavar": "N"}
NUMBER: Kind = {"type": natural, "metavar": "N"}
INPUT: Kind = {"type": input_file, "metavar": "FILE"}
OUTPUT: Kind = {"type": path, "metavar": "FILE"}
FOLDER: Kind = {"type": path, "metavar": "DIR"}
