"""Command-line options as data: a dataclass field carries its flags, its check, and its help.

One table serves the parser, the defaults and the tests, so no alias can go missing in one of them.
"""

import argparse
import dataclasses
import math
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, NoReturn, Optional, Tuple, Type


class UsageError(ValueError):
    """What the user asked for cannot be done; the message is one sentence for the user."""


def option(
    default: Any,
    *flags: str,
    type: Callable[[str], Any] = str,
    choices: Optional[Tuple[str, ...]] = None,
    switch: bool = False,
    bare: Any = None,
    metavar: Optional[str] = None,
    help: str = "",
) -> Any:
    """Declare a dataclass field that is a command-line option.

    Parameters
    ----------
    default : object
        Its value when it is not given.
    flags : str
        The name first, then its aliases.
    type : callable
        Turns the text into the value; raises `argparse.ArgumentTypeError` with what was expected.
    choices : tuple of str, optional
        The only values there are.
    switch : bool
        True without an argument.
    bare : object
        If not None, the argument may be left out, and this is the value then.
    metavar, help : str
        For ``--help``.
    """
    given = {"switch": switch, "choices": choices, "type": type, "bare": bare}
    told = {"metavar": metavar, "help": help}
    return dataclasses.field(default=default, metadata={"flags": flags, **given, **told})


def same_option(
    options: Type, name: str, default: Any = dataclasses.MISSING, **changes: Any
) -> Any:
    """Declare a field that is an option of another dataclass.

    Parameters
    ----------
    options : type
        The other dataclass.
    name : str
        Of its field.
    default, changes
        What is different here: keywords of `option`.
    """
    (field,) = (field for field in dataclasses.fields(options) if field.name == name)
    default = field.default if default is dataclasses.MISSING else default
    return dataclasses.field(default=default, metadata={**field.metadata, **changes})


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage text in front of it."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        line = " ".join(message.split())  # an argument may hold line breaks
        print(f"{self.prog}: {line[:1].lower()}{line[1:]}", file=sys.stderr)
        raise SystemExit(2)


class _Refused(argparse.Action):
    """An option of another script, which has a replacement to be named."""

    def __init__(self, replacement: str, **given: Any):
        super().__init__(nargs="*", help=argparse.SUPPRESS, **given)
        self.replacement = replacement

    def __call__(
        self, parser: argparse.ArgumentParser, _space: Any, _values: Any, flag: Any = None
    ):
        parser.error(f"{flag} is not an option here: {self.replacement}.")


def parser(
    options: Type, description: str, epilog: str = "", refused: Optional[Dict[str, str]] = None
) -> Parser:
    """Return a parser for the options declared in a dataclass.

    Options that are not given are absent from the result, so that a data set's own defaults can
    fill them in.

    Parameters
    ----------
    options : type
        The dataclass; its fields were made by `option`.
    description, epilog : str
        Around the options in ``--help``.
    refused : dict of str to str
        Options of other scripts, and what to do instead.
    """
    made = Parser(
        description=description,
        epilog=epilog,
        argument_default=argparse.SUPPRESS,
    )
    for field in dataclasses.fields(options):
        data = field.metadata
        if not data:
            continue
        told = data["help"]
        if field.default not in (None, False):
            told += f" (default: {_text(field.default)})"
        how: Dict[str, Any] = {"dest": field.name, "help": told}
        if data["switch"]:
            how["action"] = "store_true"
        else:
            how.update(type=data["type"], choices=data["choices"], metavar=data["metavar"])
            if data["bare"] is not None:
                how.update(nargs="?", const=data["bare"])
        made.add_argument(*data["flags"], **how)
    for flag, replacement in (refused or {}).items():
        made.add_argument(flag, action=_Refused, dest=argparse.SUPPRESS, replacement=replacement)
    return made


def _text(value: Any) -> str:
    """Write a value as one would on the command line."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# MXNet's operators take sizes as int32 and other numbers as float32, and refuse subnormal ones.
LARGEST_INT = 2**31 - 1
LARGEST_FLOAT, SMALLEST_FLOAT = 1e30, 1e-30


def whole(low: int, high: Optional[int] = None) -> Callable[[str], int]:
    """Return a function that reads a whole number from `low` to `high`, both included.

    Without `high` there is no limit but that of MXNet, `LARGEST_INT`.
    """
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
    """Return a function that reads a number from `low` to `high`.

    Parameters
    ----------
    low : float
    high : float, optional
        Without it there is no limit but that of MXNet, `LARGEST_FLOAT`.
    above, below : bool
        Leave out `low`, or `high`.
    """
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
    """Return a function that reads values separated by commas; the empty text has none.

    Parameters
    ----------
    read : callable
        Reads one value.
    expected : str
        What to say was expected.
    count : int, optional
        How many there must be.
    """

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
    """Read the path of a file or folder, which need not exist; ``~`` is the home folder.

    A path that no file can have, or that this user may not look up, is refused.
    """
    try:
        found = Path(text).expanduser()
        os.lstat(found)
    except (FileNotFoundError, NotADirectoryError):
        pass  # what is read or written there says so, if it matters
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text[:99]!r}: {error.strerror}") from None
    except (RuntimeError, ValueError) as error:  # no such user, a NUL
        raise argparse.ArgumentTypeError(f"{text[:99]!r}: {error}".rstrip(".")) from None
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''")
    return found


def input_file(text: str) -> Path:
    """Read the path of a file to read; a FIFO, of which reading need not end, is refused."""
    found = path(text)
    if found.exists() and not found.is_file():
        raise argparse.ArgumentTypeError(f"{found} is not a regular file")
    return found


def output_file(text: str) -> Path:
    """Read the path of a file that can be written."""
    found = path(text)
    wrong = ""
    if found.is_dir():
        wrong = "is a directory, expected a file"
    elif not found.parent.is_dir():
        wrong = f"cannot be written: there is no directory {found.parent}"
    elif not os.access(found if found.exists() else found.parent, os.W_OK):
        wrong = "cannot be written: permission denied"
    if wrong:
        raise argparse.ArgumentTypeError(f"{found} {wrong}")
    return found


def _unexpected(expected: str, text: str) -> argparse.ArgumentTypeError:
    shown = text if len(text) < 100 else f"{text[:99]}…"
    return argparse.ArgumentTypeError(f"expected {expected}, got {shown!r}")


positive_int = whole(1)
natural = whole(0)
threads = whole(0, 1024)
non_negative = real(0)
positive = real(0, above=True)
share = real(0, 1, below=True)
