"""What the documentation says is run: examples, snippets, commands and links."""

import doctest
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gluon_amp as amp
from tests import ROOT

ROOMS = (amp, amp.optimizer, amp.symbolic)
PUBLIC = {f"{room.__name__}.{n}": getattr(room, n) for room in ROOMS for n in room.__all__}
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


@pytest.mark.slow
def test_make_docs_builds_one_site_strictly(tmp_path):
    for module in ("mkdocs", "material", "mkdocstrings", "mkdocs_jupyter"):
        pytest.importorskip(module, reason="MkDocs is not installed: pip install '.[docs]'")
    # -o keeps make from installing an environment
    build = ["make", "-C", ROOT, "-o", "none/.docs", "docs", "VENV=none", f"DOCS={tmp_path}"]
    ran = subprocess.run(
        [*build, f"BIN={Path(sys.executable).parent}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stderr
    api = "".join(page.read_text() for page in (tmp_path / "docs" / "api").glob("*.html"))
    assert [name for name in DOCUMENTED if f'id="{name}"' not in api] == []
    assert 'id="gluon_amp.Trainer.step"' in api
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert (tmp_path / "notebooks" / f"{notebook.stem}.html").exists()
    assert "No number" in (tmp_path / "index.html").read_text()
    assert 'src="mermaid/mermaid.tiny.js"' in (tmp_path / "docs" / "how_it_works.html").read_text()
    assert (tmp_path / "docs" / "mermaid" / "mermaid.tiny.js").exists()
    # A page asks for nothing outside the site, apart from the search of a page that was opened as
    # a file.
    sources = re.compile(
        r'<(?:script|img|iframe)[^>]* src="(https?:[^"]*)"|<link[^>]* href="(https?:[^"]*\.css)"'
    )
    pages = [*tmp_path.glob("*.html"), *(tmp_path / "docs").rglob("*.html")]
    asked = {one or two for page in pages for one, two in sources.findall(page.read_text())}
    assert asked <= {"https://unpkg.com/iframe-worker/shim"}
