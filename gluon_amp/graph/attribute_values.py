"""What the attributes of a node say: texts in a symbol's JSON, as MXNet reads them.

An attribute that is missing, or whose text is `'None'`, has its default.
"""

from typing import Mapping, Tuple


def is_set(attrs: Mapping[str, str], name: str) -> bool:
    """Return whether an attribute has a value."""
    return attrs.get(name, "None").strip().lower() != "none"


def flag(attrs: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return an attribute that is true or false, in any case, or as 1 or 0."""
    return attrs[name].strip().lower() in ("true", "1") if is_set(attrs, name) else default


def number(attrs: Mapping[str, str], name: str, default: float = 0.0) -> float:
    """Return an attribute that is a number."""
    return float(attrs[name]) if is_set(attrs, name) else default


def integer(attrs: Mapping[str, str], name: str, default: int = 0) -> int:
    """Return an attribute that is a whole number."""
    return int(attrs[name]) if is_set(attrs, name) else default


def integers(attrs: Mapping[str, str], name: str, default: Tuple[int, ...] = ()) -> Tuple[int, ...]:
    """Return the numbers of an attribute such as `'(3, 3)'`, `'[3L]'` or `'2'`.

    The default stands for `'()'`, too.
    """
    text = attrs[name].replace("L", "").strip("()[] ,") if is_set(attrs, name) else ""
    return tuple(int(part) for part in text.split(",") if part) or default
