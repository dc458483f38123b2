"""Command-line options as data: a dataclass field carries its flags, its check, and its help.

One table serves the parser, the defaults and the tests, so no alias can go missing in one of them.
"""

import argparse
import dataclasses
import math
import sys
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

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message[:1].lower()}{message[1:]}", file=sys.stderr)
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
        allow_abbrev=False,
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


def _number(text: str, kind: Type, what: str, fits: Callable[[Any], bool]) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not math.isfinite(value) or not fits(value):
        raise argparse.ArgumentTypeError(f"expected {what}, got {text!r}")
    return value


def positive_int(text: str) -> int:
    """Read a whole number of at least 1."""
    return _number(text, int, "a whole number of at least 1", lambda value: value >= 1)


def natural(text: str) -> int:
    """Read a whole number of at least 0."""
    return _number(text, int, "a whole number of at least 0", lambda value: value >= 0)


def non_negative(text: str) -> float:
    """Read a number of at least 0."""
    return _number(text, float, "a number of at least 0", lambda value: value >= 0)


def positive(text: str) -> float:
    """Read a number above 0."""
    return _number(text, float, "a number above 0", lambda value: value > 0)


def share(text: str) -> float:
    """Read a number from 0 up to, but not including, 1."""
    return _number(text, float, "a number from 0 up to below 1", lambda value: 0 <= value < 1)


def three_numbers(text: str) -> Tuple[float, ...]:
    """Read a number for each of red, green and blue, separated by commas."""
    values = tuple(_number(part, float, "three numbers", lambda value: True)
                   for part in text.split(","))  # fmt: skip
    if len(values) != 3:
        raise argparse.ArgumentTypeError(f"expected three numbers, as in 123,117,104, got {text!r}")
    return values


def int_list(text: str) -> Tuple[int, ...]:
    """Read whole numbers separated by commas; the empty text is an empty list."""
    return tuple(
        _number(part, int, "whole numbers of at least 0, as in 30,60,80", lambda value: value >= 0)
        for part in text.split(",")
        if text.strip()
    )
