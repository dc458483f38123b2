"""What errors say to a user: sentences, near matches, lists cut short, scales and reasons."""

import contextlib
import difflib
import math
import sys
from itertools import islice
from typing import Iterable, Iterator, List, Sequence

# What a worker says to the launcher, which sets this variable, when only the others are missing
LAUNCHER = "GLUON_AMP_LAUNCHER"
FINISHED = "This worker has finished, and waits for the others."


class UsageError(ValueError):
    """A request of the user that cannot be met; the message is one sentence for the user."""


# What Python 3.13 and later install without its metadata, which ask for numpy 1 (see setup.py)
BARE = {
    "cpu": "mxnet==1.9.1",
    "cu112": "mxnet-cu112==1.9.1",
    "cu117": "mxnet-cu117==1.9.1",
    "gluoncv": "gluoncv==0.10.5.post0",
}


def install(extra: str, pip: str = "pip install -c constraints.txt") -> str:
    """Return the command that installs an extra of this package on this Python.

    With the constraints it brings the versions that were run together.
    """
    command = f"{pip} 'gluon-amp[{extra}]'"
    bare = extra in BARE and sys.version_info >= (3, 13)
    return f"{command} && pip install --no-deps {BARE[extra]}" if bare else command


@contextlib.contextmanager
def from_extra(extra: str, problem: str) -> Iterator[None]:
    """Import packages of an extra in a with block; one that is missing is a `UsageError`.

    Its message is the problem, as in `'--plot needs matplotlib'`, and how to install the extra.
    """
    try:
        yield
    except ImportError:
        raise UsageError(f"{problem}: run `{install(extra)}`.") from None


COMPARED = 2000  # difflib takes up to a millisecond for each comparison


def close_matches(name: str, known: Iterable[str]) -> List[str]:
    """Return up to three of the first 2,000 known names that resemble a name, in any case."""
    by_lower_case = {one.lower(): one for one in islice(known, COMPARED)}
    return [by_lower_case[m] for m in difflib.get_close_matches(name.lower(), by_lower_case)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'float16'?)"`, or an empty string where nothing is similar."""
    matches = close_matches(name, known)
    return f" (did you mean {' or '.join(map(repr, matches))}?)" if matches else ""


def first_few(names: Sequence[str], limit: int = 3) -> str:
    """Return names as a list of at most `limit`, as in `'a, b and 7 more'`."""
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def scale_text(scale: float) -> str:
    """Return a loss scale as text without rounding it: `'65536'`, or `'2^38'` if that is long."""
    exact = f"{scale:g}"
    return exact if float(exact) == scale else f"2^{math.log2(scale):g}"


def reason_of(error: BaseException) -> str:
    """Return an error's message in one line, without MXNet's stack, file names and full stop."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    line = lines[-1 if "Traceback (most recent call last)" in lines[0] else 0]  # one of C++
    return line.split("Check failed: ")[-1].split("MXNetError: ")[-1].strip().rstrip(".")
