"""Reports as HTML, which a notebook shows in place of their text."""

from html import escape
from typing import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Return a table; all texts are escaped.

    Parameters
    ----------
    head : sequence of str
    rows : iterable of sequences
        A cell for each text of the head.
    caption : str
        A sentence above the table; empty for none.
    """
    lines = [f"<caption>{escape(caption)}</caption>"] if caption else []
    lines += ["<thead>", _row("th", head), "</thead>", "<tbody>"]
    lines += [_row("td", row) for row in rows]
    return "\n".join(["<table>", *lines, "</tbody>", "</table>"])


def paragraph(text: str) -> str:
    """Return an escaped paragraph."""
    return f"<p>{escape(text)}</p>"


def _row(kind: str, cells: Iterable[object]) -> str:
    style = ' style="text-align: left"'
    return f"<tr>{''.join(f'<{kind}{style}>{escape(str(cell))}</{kind}>' for cell in cells)}</tr>"
