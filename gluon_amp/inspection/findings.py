"""What `check` returns: findings, each with its place, its problem and its fix."""

import textwrap
from typing import List, NamedTuple

WIDTH = 80


class Finding(NamedTuple):
    """A problem, or the template of one: its texts may hold fields as in `'{names}'`.

    Attributes
    ----------
    kind : str
        'dimension', 'epsilon', 'loss_head', 'norm', 'kvstore' or 'frozen'.
    block : str
        Path of the block, as in `'features.0'`; `''` is the net itself, or its trainer.
    problem, fix : str
        What is wrong, and what to do.
    """

    kind: str
    block: str
    problem: str
    fix: str

    def of(self, block: str = "", **fields: object) -> "Finding":
        """Return the finding that this template makes for a block."""
        texts = (text.format(**fields) for text in (self.problem, self.fix))
        return Finding(self.kind, block, *texts)

    def __str__(self) -> str:
        text = f"{self.block or 'net'}: {self.problem}: {self.fix}."
        return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


class Findings(List[Finding]):
    """A list of `Finding`; its text has a paragraph for each."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "nothing found"

    __repr__ = __str__
