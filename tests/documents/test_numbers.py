"""A measured number on a page has its data, or its source, in the same section."""

import re

import pytest

from experiments.pages import PART
from tests.documents.test_documents import DOCUMENTS, FENCE, text_of
from tests.documents.test_figures import FIGURE

# test_figures.py compares the numbers of these pages with the data, and allows no others.
COMPARED = ("README.md", "CHANGELOG.md", "docs/guide/leave_mxnet.md")
# Numbers with a unit that were not measured, and what they are instead.
LEVELS = ("5 % level", "5% level", "95% interval")  # of tests
NOT_MEASURED = {
    "CONTRIBUTING.md": {"below 6 minutes": "a budget"},
    "docs/internals/policy.md": {"1 times the scale": "arithmetic"},
    "docs/how_to/horovod.md": {
        "at least 97 %": "a bound: experiments/horovod/__main__.py",
        "within\n  60 seconds": "a bound: experiments/horovod/__main__.py",
    },
    "docs/results/zoo_coverage.md": {"at most 4 times": "a bound: experiments/zoo_coverage.py"},
    "docs/several_machines.md": {
        "end after 300 s": "a constant: gluon_amp/base/parameter_server.py",
        "after 60 s the launcher": "a constant: gluon_amp/training/workers/launcher.py",
        "after 75 s the launcher": "two constants: gluon_amp/training/workers/launcher.py",
        "within 6 s": "a bound: gluon_amp/training/workers",
        "within 10 s": "a bound: gluon_amp/training/workers",
        "60 s by default": "an option's default",
        "30 s later": "a constant: gluon_amp/training/workers/group.py",
        "every 2 s": "a constant: gluon_amp/training/workers/liveness.py",
        "2 times as many bytes": "arithmetic",
    },
}
BESIDE = re.compile(r"\]\(\S+\.(?:json|csv)\)|^Source: ", re.MULTILINE)
SECTION = re.compile(r"^#+ ", re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\|$\n?)+", re.MULTILINE)
COUNTED = re.compile(r"\b(?:two|three|four|five|six|ten|twenty) (?:seconds|minutes|hours)\b")
HEAD = re.compile(r"seconds|minutes|hours|MiB|GiB|images/s|%|\((?:s|ms)\)|\bms\b", re.IGNORECASE)


def columns(text):
    """Yield the numbers in a column whose head names a unit."""
    for table in TABLE.findall(text):
        head, *rows = [line.strip("|").split("|") for line in table.splitlines()]
        units = [place for place, title in enumerate(head) if HEAD.search(title)]
        yield from (row[at].strip() for row in rows for at in units if re.search(r"\d", row[at]))


def unproven(text, exceptions=()):
    """Return the numbers with a unit whose section links no data and names no source."""
    for words in (*LEVELS, *exceptions):
        text = text.replace(words, "")
    sections = SECTION.split(PART.sub("", FENCE.sub("", text)))
    bare = [section for section in sections if not BESIDE.search(section)]
    return [
        number
        for section in bare
        for number in (*FIGURE.findall(section), *COUNTED.findall(section), *columns(section))
    ]


PAGES = [name for name in DOCUMENTS if name.endswith(".md") and name not in COMPARED]


@pytest.mark.parametrize("document", PAGES)
def test_a_measured_number_has_its_data_or_its_source_beside_it(document):
    exceptions = NOT_MEASURED.get(document, {})
    text = text_of(document)
    assert [words for words in exceptions if words not in text] == []
    assert unproven(text, exceptions) == []


def test_numbers_without_data_are_noticed():
    for text in (
        "it takes 5 minutes",
        "97.5 %",
        "3.2× faster",
        "12 ± 3",
        "8 ms",
        "2 h",
        "less than three minutes",
        "| `float32` | 3382 MiB |",
        "| seconds | command |\n|---|---|\n| 30 | pip |\n",
        "# One\nIt takes 92 s.\n# Two\n[its data](times.json)",
    ):
        assert unproven(text), text
    for text in (
        "# One\nIt takes 92 s, as [its data](times.json) say.",
        "Source: the FAQ. It takes 92 s.",
        "```\n3 s\n```\n",
        "<!-- a -->\n3 s\n<!-- /a -->",
        "three classes, 24 epochs, 2 cores, MXNet 1.9.1",
    ):
        assert not unproven(text), text
    assert not unproven("below 6 minutes", {"below 6 minutes": "a budget"})
