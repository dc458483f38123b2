"""The self-test's report, as text in 80 columns and as JSON."""

import json
from typing import List, NamedTuple

from gluon_amp.inspection.values import paragraph


class Result(NamedTuple):
    """The outcome of one check."""

    name: str
    status: str  # 'ok', 'failed', or 'differs' where another result is no failure
    measured: str
    expected: str
    source: str  # why it is expected
    seconds: float

    def __str__(self) -> str:
        text = f"{self.name}: {self.measured}"
        if self.measured != self.expected:
            source = f"; {self.source}" if self.source else ""
            text += f" (expected: {self.expected}{source})"
        return paragraph(text, f"{self.status:<8} ")


class Report(NamedTuple):
    """What `selftest` returns: the device, a result for each check, and the duration."""

    device: str
    results: List[Result]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(result.status != "failed" for result in self.results)

    @property
    def conclusion(self) -> str:
        """One sentence."""
        parts = []
        for status, verb in (("differs", "differ"), ("failed", "failed")):
            names = [result.name for result in self.results if result.status == status]
            if names:
                parts.append(f"{len(names)} {verb} ({'; '.join(names)})")
        where = f"on {self.device}, in {self.seconds:.0f} s"
        sentence = f"All {len(self.results)} checks are ok {where}."
        if parts:
            sentence = f"Of {len(self.results)} checks {where}, {' and '.join(parts)}."
        return paragraph(sentence)

    def to_json(self) -> str:
        """Return the report as a JSON text."""
        results = [result._asdict() for result in self.results]
        data = {"ok": self.ok, "device": self.device, "seconds": self.seconds, "checks": results}
        return json.dumps(data, indent=2)
