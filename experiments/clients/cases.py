"""The data that describe the programs of clients, and the edits that cast them."""

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import List, Mapping, NamedTuple, Sequence

from gluon_amp.base.messages import UsageError

HERE = Path(__file__).parent
PROGRAMS, REQUIREMENTS = HERE / "programs", HERE / "requirements"


class Edit(NamedTuple):
    """A change of one line of a program, as a diff has it."""

    old: str  # the whole line without its indentation, which occurs once in the program
    new: str  # the lines in its place; ``{policy}`` stands for the name of the policy

    @property
    def lines(self) -> int:
        """How many lines are changed or added."""
        new = self.new.splitlines()
        return len(new) - (self.old in new)

    def apply(self, text: str, policy: str) -> str:
        """Return the program with this change; a line that occurs not once is a `UsageError`."""
        new = self.new.replace("{policy}", policy)
        line = re.compile(rf"^( *){re.escape(self.old)}$", re.MULTILINE)
        text, count = line.subn(lambda found: textwrap.indent(new, found[1]), text)
        if count != 1:
            raise UsageError(f"expected the line {self.old!r} once, found it {count}×.")
        return text


def apply(edits: Sequence[Edit], text: str, policy: str) -> str:
    """Return a program after all edits; float32 has none."""
    if policy != "float32":
        for edit in edits:
            text = edit.apply(text, policy)
    return text


@dataclass(frozen=True)
class Case:
    """A program and the edits with which it runs in another dtype."""

    name: str  # unique in its family
    program: str  # the file's name in ``programs/FAMILY/``
    edits: Sequence[Edit]
    steps: int = 30  # of its training
    #: Edits of installed files, for clients with a command line: ``sockeye/training.py``. The
    #: program imports a copy of their package.
    files: Mapping[str, Sequence[Edit]] = field(default_factory=dict)

    @property
    def lines(self) -> int:
        """How many lines a user changes or adds."""
        return sum(edit.lines for edits in (self.edits, *self.files.values()) for edit in edits)


@dataclass(frozen=True)
class Family:
    """The programs of a client, which share an environment."""

    name: str  # also the folder of its programs
    cases: Sequence[Case]
    python: str = "3.11"
    #: The requirements are all packages that are installed, for a client that itself requires
    #: another version of MXNet.
    complete: bool = False

    @property
    def requirements(self) -> Path:
        """A file with exact versions. Those before its first empty line are shown in the table."""
        return REQUIREMENTS / f"{self.name}.txt"

    @property
    def versions(self) -> List[str]:
        """The versions that the table shows, such as ``mxnet==1.9.1``."""
        return self.requirements.read_text().partition("\n\n")[0].split()

    def source(self, case: Case) -> Path:
        """Return the path of a case's program."""
        return PROGRAMS / self.name / case.program
