"""What `check` returns: findings, each with its place, its problem and its fix."""

from typing import List, NamedTuple

from gluon_amp.inspection.values import Preformatted, paragraph


class Finding(NamedTuple):
    """A problem of a net or its trainer.

    Attributes
    ----------
    kind : str
        'dimension', 'kernel', 'index', 'epsilon', 'loss_head', 'norm', 'kvstore' or 'frozen'.
    block : str
        Path of the block, as in `'features.0'`; `''` is the net itself, or its trainer.
    problem, fix : str
        What is wrong, and what to do.
    """

    kind: str
    block: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return paragraph(f"{self.block or 'net'}: {self.problem}: {self.fix}.", indent="  ")


class Findings(Preformatted, List[Finding]):
    """A list of `Finding`; its text has a paragraph for each."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "nothing found"

    __repr__ = __str__
