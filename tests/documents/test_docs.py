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

PUBLIC = {
    **{f"gluon_amp.{name}": getattr(amp, name) for name in amp.__all__},
    **{
        f"gluon_amp.optimizer.{name}": getattr(amp.optimizer, name)
        for name in amp.optimizer.__all__
    },
    **{f"gluon_amp.symbolic.{name}": getattr(amp.symbolic, name) for name in amp.symbolic.__all__},
}
DOCUMENTED = {name: what for name, what in PUBLIC.items() if not inspect.ismodule(what)}


def examples(docstring):
    """The examples of a docstring, or what is wrong with them."""
    found = doctest.DocTestParser().get_examples(docstring or "")
    if not found or "\nExamples\n--------\n" not in inspect.cleandoc(docstring):
        raise LookupError("has no Examples section")
    if any(doctest.SKIP in example.options for example in found):
        raise LookupError("has an example that is not run")
    if not any(example.want for example in found):
        raise LookupError("has no example that shows a result")
    return found


def failures(docstring, name):
    """Run a docstring's examples in a namespace of their own; the report of those that fail."""
    report = []
    runner = doctest.DocTestRunner()
    test = doctest.DocTestParser().get_doctest(docstring, {}, name, None, 0)
    runner.run(test, out=report.append)
    return "".join(report)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_has_an_example_that_holds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some save files
    docstring = DOCUMENTED[name].__doc__
    assert len(examples(docstring)) <= 9, "keep examples short"
    assert failures(docstring, name) == ""


def test_modules_say_what_they_are_and_list_their_public_names():
    for name in PUBLIC.keys() - DOCUMENTED.keys():
        assert PUBLIC[name].__doc__ and PUBLIC[name].__all__, name


SECTION = re.compile(
    r"^(?:Parameters|Attributes)\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", re.DOTALL | re.MULTILINE
)


def undescribed(docstring):
    """The fields of a docstring whose next line does not describe them."""
    lines = [
        line
        for body in SECTION.findall(inspect.cleandoc(docstring or "") + "\n")
        for line in body.rstrip().splitlines()
        if line
    ]
    described = zip(lines, [*lines[1:], ""])
    return [one for one, after in described if one[0] != " " and not after.startswith(" ")]


def test_every_field_has_a_description():
    found = {}
    for name, what in DOCUMENTED.items():
        methods = [
            member
            for key, member in inspect.getmembers(what, callable)
            if not key.startswith("_")
            and str(getattr(member, "__module__", "")).startswith("gluon_amp")
        ]
        found[name] = [field for one in (what, *methods) for field in undescribed(one.__doc__)]
    assert {name: fields for name, fields in found.items() if fields} == {}


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
