"""What the documentation says is run: examples, snippets, commands and links."""

import doctest
import html
import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import gluon_amp as amp
from tests import ROOT

MODULES = (amp, amp.optimizer, amp.symbolic)
PUBLIC = {
    f"{module.__name__}.{n}": getattr(module, n) for module in MODULES for n in module.__all__
}
DOCUMENTED = {name: what for name, what in PUBLIC.items() if not inspect.ismodule(what)}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_has_an_example_that_holds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some save files
    docstring = DOCUMENTED[name].__doc__
    assert "\nExamples\n--------\n" in inspect.cleandoc(docstring)
    test = doctest.DocTestParser().get_doctest(docstring, {}, name, None, 0)
    assert 1 <= len(test.examples) <= 9, "keep examples short"
    assert any(example.want for example in test.examples)
    assert not any(doctest.SKIP in example.options for example in test.examples)
    if ", torch" in test.examples[0].source:
        pytest.importorskip("torch", reason="PyTorch is not installed: run `make handover`")
    report = []
    doctest.DocTestRunner().run(test, out=report.append)
    assert "".join(report) == ""


def test_modules_say_what_they_are_and_list_their_public_names():
    for name in PUBLIC.keys() - DOCUMENTED.keys():
        assert PUBLIC[name].__doc__ and PUBLIC[name].__all__, name


# ---------------------------------------------------------------------------------------- the site


class Page(HTMLParser):
    """The links of a page, and the names that links may lead to."""

    def __init__(self, path):
        super().__init__()
        self.links, self.names = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key in ("href", "src") and value:
                self.links.append(value)
            elif key in ("id", "name"):
                self.names.add(value)


def crawl(site):
    """Return the number of links within a site, and those that lead nowhere, with their pages."""
    # the links of 404.html are those of a server
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    count, dead = 0, []
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            count += 1
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            names = pages[target].names if target in pages else {unquote(url.fragment)}
            if not target.is_file() or (url.fragment and unquote(url.fragment) not in names):
                dead.append((str(path.relative_to(site)), link))
    return count, dead


def test_the_crawl_notices_dead_links(tmp_path):
    good = '<a href="b.html#here">b</a><img src="a.png"><a href="https://x.org/y">x</a>'
    bad = '<p id="here"></p><a href="c.md">c</a><a href="a.html#gone">a</a><a href="#gone">b</a>'
    (tmp_path / "a.html").write_text(good)
    (tmp_path / "b.html").write_text(bad)
    (tmp_path / "a.png").touch()
    links = ("c.md", "a.html#gone", "#gone")
    assert crawl(tmp_path) == (5, [("b.html", link) for link in links])


@pytest.fixture(scope="module")
def site():
    """The site that `make docs` builds."""
    for module in ("mkdocs", "material", "mkdocstrings", "mkdocs_jupyter"):
        pytest.importorskip(module, reason="MkDocs is not installed: pip install '.[docs]'")
    # -o keeps make from installing an environment; the site's folder is the default
    build = ["make", "-C", ROOT, "-o", "none/.docs", "docs", "VENV=none"]
    ran = subprocess.run(
        [*build, f"BIN={Path(sys.executable).parent}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stderr
    return ROOT / "build" / "site"


@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere(site):
    count, dead = crawl(site)
    assert count > 5000 and dead == []


@pytest.mark.slow
def test_make_docs_builds_one_site_strictly(site):
    api = "".join(page.read_text() for page in (site / "docs" / "api").glob("*.html"))
    assert [name for name in DOCUMENTED if f'id="{name}"' not in api] == []
    assert 'id="gluon_amp.Trainer.step"' in api
    shown = html.unescape(re.sub("<[^>]+>", "", api))
    assert "max_consecutive_skips=20" in shown and "BY_DTYPE" not in shown
    home = (site / "index.html").read_text()
    assert "No number" in home
    # a notebook, and a page that only the appendix lists
    assert 'href="notebooks/3_' in home and 'href="docs/results/edge.html"' in home
    assert 'src="mermaid/mermaid.tiny.js"' in (site / "docs" / "how_it_works.html").read_text()
    assert (site / "docs" / "mermaid" / "mermaid.tiny.js").exists()
    # A page asks for nothing outside the site, apart from the search of a page that was opened as
    # a file.
    sources = re.compile(
        r'<(?:script|img|iframe)[^>]* src="(https?:[^"]*)"|<link[^>]* href="(https?:[^"]*\.css)"'
    )
    pages = [*site.glob("*.html"), *(site / "docs").rglob("*.html")]
    asked = {one or two for page in pages for one, two in sources.findall(page.read_text())}
    assert asked <= {"https://unpkg.com/iframe-worker/shim"}
