"""Pages with programs: those of the guide, and how other projects change.

Their snippets run, and those of docs/how_to show the lines of their diffs.
"""

import pytest

from tests import ROOT
from tests.documents.test_documents import blocks

import mxnet as mx

PROJECTS, GUIDE = (
    sorted(path for path in (ROOT / "docs" / folder).glob("*.md") if path.stem != "index")
    for folder in ("how_to", "guide")
)
LINES = 4  # a user changes no more
# What some snippets import that is not installed with the others, and what installs it
ELSEWHERE = {"horovod": "run `make horovod`", "torch": "run `make handover`"}


@pytest.mark.parametrize("page", GUIDE + PROJECTS, ids=lambda page: page.stem)
def test_the_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    snippets = blocks(page.read_text(), "python")
    assert snippets
    try:
        for number, snippet in enumerate(snippets, 1):
            exec(compile(snippet, f"{page.name}, snippet {number}", "exec"), namespace)
    except ModuleNotFoundError as error:
        if error.name not in ELSEWHERE:
            raise
        pytest.skip(f"{error.name} is not installed: {ELSEWHERE[error.name]}")
    finally:
        mx.npx.reset_np()  # which the pages of deep-NumPy's clients set


def test_the_first_diff_of_a_page_is_short_and_its_lines_are_those_that_run():
    for page in PROJECTS:
        text = page.read_text()
        diff, program = blocks(text, "diff")[0], "\n".join(blocks(text, "python"))
        added = [line[1:].strip() for line in diff.splitlines() if line.startswith("+")]
        assert 1 <= len(added) <= LINES, page
        assert [line for line in added if line not in program] == [], page


def test_indexes_link_all_pages_and_pages_of_the_guide_are_short():
    for pages in (GUIDE, PROJECTS):
        index = pages[0].with_name("index.md").read_text()
        assert [page.name for page in pages if f"]({page.name})" not in index] == []
    lengths = {page.name: len(page.read_text().splitlines()) for page in GUIDE}
    assert {name: n for name, n in lengths.items() if not 20 <= n <= 75} == {}
