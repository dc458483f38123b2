"""What the documentation says is run: examples, snippets, commands and links."""

import doctest
import inspect
import os
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


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in DOCUMENTED])
def test_modules_say_what_they_are_and_list_their_public_names(name):
    assert PUBLIC[name].__doc__
    assert PUBLIC[name].__all__


@pytest.mark.parametrize(
    ("docstring", "complaint"),
    [
        (None, "no Examples section"),
        ("Add.", "no Examples section"),
        ("Add.\n\n>>> 1 + 1\n2", "no Examples section"),
        ("Add.\n\nExamples\n--------\n>>> 1 + 1  # doctest: +SKIP\n2", "not run"),
        ("Add.\n\nExamples\n--------\n>>> x = 1", "shows a result"),
    ],
)
def test_missing_examples_are_noticed(docstring, complaint):
    with pytest.raises(LookupError, match=complaint):
        examples(docstring)


def test_wrong_examples_are_noticed():
    assert "Got:\n    2" in failures("Examples\n--------\n>>> 1 + 1\n3\n", "sum")
    assert failures("Examples\n--------\n>>> 1 + 1\n2\n", "sum") == ""


def test_make_docs_builds_a_page_for_each_public_module(tmp_path):
    pytest.importorskip("pdoc")
    # the stamp stands for the installed environment; -o keeps make from installing another
    build = ["make", "-C", ROOT, "-o", "stamp", "docs", "STAMP=stamp", f"DOCS={tmp_path}"]
    ran = subprocess.run(
        [*build, f"BIN={Path(sys.executable).parent}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stderr
    assert "Warn" not in ran.stderr
    pages = {page.stem: page.read_text() for page in tmp_path.rglob("*.html")}
    assert set(pages) == {
        "index",
        "gluon_amp",
        "optimizer",
        "symbolic",
        "scaled_gradients",
        "scaled_steps",
    }
    for name in DOCUMENTED:
        module, _, what = name.rpartition(".")
        assert f'<section id="{what}">' in pages[module.rpartition(".")[2]], name
    assert 'href="gluon_amp/trainer/scaled_steps.html#ScaledSteps.step"' in pages["gluon_amp"]
