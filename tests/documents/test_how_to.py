"""Pages with programs: those of the guide, and how other projects change.

Their snippets run, and those of docs/how_to show the lines of their diffs.
"""

import pytest

from tests import ROOT
from tests.documents.test_documents import blocks

import mxnet as mx

PROJECTS = sorted({*(ROOT / "docs" / "how_to").glob("*.md")} - {ROOT / "docs/how_to/index.md"})
GUIDE = sorted({*(ROOT / "docs" / "guide").glob("*.md")} - {ROOT / "docs/guide/index.md"})
LINES = 4  # a user changes no more
# Pages whose snippets import what is not installed with the others, and what installs it.
ELSEWHERE = {"horovod": ("horovod.mxnet", "run `make horovod`")}


@pytest.fixture
def legacy_arrays():
    """Leave deep-NumPy, which the pages of its clients turn on."""
    yield
    mx.npx.reset_np()


@pytest.mark.parametrize("page", GUIDE + PROJECTS, ids=lambda page: page.stem)
def test_the_snippets_of_a_page_run(page, legacy_arrays, tmp_path, monkeypatch):
    if page.stem in ELSEWHERE:
        module, what = ELSEWHERE[page.stem]
        pytest.importorskip(module, reason=f"{module} is not installed: {what}")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    snippets = blocks(page.read_text(), "python")
    assert snippets
    for number, snippet in enumerate(snippets, 1):
        exec(compile(snippet, f"{page.name}, snippet {number}", "exec"), namespace)


@pytest.mark.parametrize("page", PROJECTS, ids=lambda page: page.stem)
def test_the_first_diff_of_a_page_is_short_and_its_lines_are_those_that_run(page):
    text = page.read_text()
    diff, program = blocks(text, "diff")[0], "\n".join(blocks(text, "python"))
    added = [line[1:].strip() for line in diff.splitlines() if line.startswith("+")]
    assert 1 <= len(added) <= LINES
    assert [line for line in added if line not in program] == []


@pytest.mark.parametrize("folder, pages", [("guide", GUIDE), ("how_to", PROJECTS)])
def test_the_index_of_a_folder_links_all_its_pages(folder, pages):
    index = (ROOT / "docs" / folder / "index.md").read_text()
    assert [page.name for page in pages if f"]({page.name})" not in index] == []


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_a_page_of_the_guide_is_short(page):
    assert 20 <= len(page.read_text().splitlines()) <= 75
