"""What README and the other documents show: links, commands and snippets of Python."""

import argparse
import json
import os
import re
import runpy
import shlex
import subprocess
import sys

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.training.command_line import Parser
from tests import ROOT

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "notebooks/**/*.ipynb")
    for path in ROOT.glob(pattern)
    if "_build" not in path.parts and ".ipynb_checkpoints" not in path.parts
)

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)|\b(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def text_of(document):
    """The Markdown of a document; of a notebook, that of its cells in words."""
    source = (ROOT / document).read_text(encoding="utf-8")
    if not document.endswith(".ipynb"):
        return source
    cells = [cell for cell in json.loads(source)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def blocks(text, language):
    """The fenced blocks of one language."""
    return [body for name, body in FENCE.findall(text) if name == language]


# ------------------------------------------------------------------------------------------ links


def anchors(text):
    """The names that GitHub gives to headings: lower case, hyphens for spaces, no punctuation."""
    titles = HEADING.findall(FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(text, folder):
    """Relative links that lead to no file, or to a heading that the file does not have."""
    wrong = []
    for link in (one or other for one, other in LINK.findall(FENCE.sub("", text))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, heading = link.partition("#")
        target = folder / path
        exists = target.exists() and (
            not heading or heading in anchors(target.read_text() if path else text)
        )
        if not exists:
            wrong.append(link)
    return wrong


def test_links_lead_somewhere(tmp_path):
    found = {name: broken(text_of(name), (ROOT / name).parent) for name in DOCUMENTS}
    assert {name: links for name, links in found.items() if links} == {}
    (tmp_path / "there.md").write_text("# A title, with `code`\n```sh\n# a comment\n```\n")
    good = "[a](there.md) [b](there.md#a-title-with-code) [c](https://x.org/y) [d](#here)\n# Here\n"
    bad = '[a](gone.md) [b](there.md#a-comment) <img src="gone.png"> ![c](gone.svg)'
    assert broken(good, tmp_path) == []
    assert broken(bad, tmp_path) == ["gone.md", "there.md#a-comment", "gone.png", "gone.svg"]


FILES = re.compile(r"`((?:gluon_amp|tests|scripts|experiments|notebooks)/[\w/.]*)`")


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/internals/index.md"])
def test_files_that_a_document_names_exist(document):
    names = FILES.findall(text_of(document))
    assert len(names) > 1
    assert [name for name in names if not (ROOT / name).exists()] == []


# --------------------------------------------------------------------------------------- commands


class ParsedError(BaseException):
    """The command's parser took its arguments; scripts catch all that is an Exception."""


def commands(text):
    """The commands that are shown, in blocks and in running text, as lists of words."""
    lines = [line for body in blocks(text, "sh") for line in body.replace("\\\n", "").splitlines()]
    lines += [" ".join(one.split()) for one in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
    words = (
        shlex.split(line, comments=True)
        for line in lines
        if re.match(r"make |python |gluon-amp ", line)
    )
    return [one for one in words if len(one) > 1]


def parse(words, monkeypatch):
    """Let a script's own parser, or make, read a command; nothing of it is run."""
    if words[0] == "make":
        variables = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "ARGS")}
        make = ["make", "-C", ROOT, "-n", *words[1:]]
        shown = subprocess.run(make, env=variables, capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        for line in (one.partition("python ")[2] for one in shown.stdout.splitlines()):
            if line.startswith(("scripts/", "-m experiments.")):
                parse(["python", *shlex.split(line)], monkeypatch)
        return
    if words[0] == "gluon-amp":
        words = ["python", "-m", "gluon_amp", *words[1:]]
    if words[1] == "-m":
        name = words[2].replace(".", "/")
        path = f"{name}/__main__.py" if (ROOT / name).is_dir() else f"{name}.py"
        words = ["python", path, *words[3:]]

    def only_parsing(accept):
        def parse_only(parser, *args, **kwargs):
            accept(parser, *args, **kwargs)
            raise ParsedError

        return parse_only

    with monkeypatch.context() as patch:
        for parser in (argparse.ArgumentParser, Parser):
            patch.setattr(parser, "parse_args", only_parsing(parser.parse_args))
        patch.setattr(sys, "argv", list(words[1:]))
        patch.syspath_prepend(str(ROOT / "scripts"))
        try:
            runpy.run_path(str(ROOT / words[1]), run_name="__main__")
        except ParsedError:
            return
        except SystemExit as stop:
            if "--help" in words and not stop.code:
                return
    pytest.fail(f"refused, or not read by its parser: {' '.join(words)}")


OURS = re.compile(r"(make|gluon-amp|python (scripts/|-m (gluon_amp|experiments\.)))")
SHOWN = {tuple(words) for document in DOCUMENTS for words in commands(text_of(document))}
COMMANDS = sorted(words for words in SHOWN if OURS.match(" ".join(words)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_are_understood(words, monkeypatch, capsys):
    parse(words, monkeypatch)


def test_wrong_commands_are_noticed(monkeypatch, capsys):
    for line in ("make train ARGS='--dtype float17'", "gluon-amp nonsense"):
        with pytest.raises(pytest.fail.Exception):
            parse(*commands(f"Call `{line}`."), monkeypatch)


# --------------------------------------------------------------------------------------- snippets


SNIPPETS = [
    name
    for name in DOCUMENTS
    if name.endswith(".md")
    and blocks(text_of(name), "python")
    and not name.startswith(("docs/how_to/", "docs/guide/"))  # on their own, in test_how_to.py
]


@pytest.mark.parametrize("document", SNIPPETS)
def test_snippets_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for number, snippet in enumerate(blocks(text_of(document), "python"), 1):
        exec(compile(snippet, f"{document}, snippet {number}", "exec"), namespace)


def test_the_example_of_the_readme_trains_in_float16_and_prints_what_the_page_shows(capsys):
    text = text_of("README.md")
    assert "**No number here was measured on a GPU.**" in text
    (example,), (shown,) = blocks(text, "python"), blocks(text, "text")
    assert len([line for line in example.splitlines() if line]) <= 15
    namespace = {}
    exec(example, namespace)
    assert "float16" in {p.dtype for p in namespace["net"].collect_params().values()}
    assert namespace["loss"].dtype == np.float32
    printed = capsys.readouterr().out
    number = re.compile(r"\d+\.\d+(?:e\+\d+)?")  # the last digits depend on the processor
    assert number.sub("_", printed) == number.sub("_", shown)
    values, expected = (list(map(float, number.findall(one))) for one in (printed, shown))
    assert values == pytest.approx(expected, rel=0.01, abs=0.02)


# ------------------------------------------------------------------- messages and the citation


def test_messages_in_the_troubleshooting_table_are_those_of_the_source():
    """Symptoms in quotes are looked for by those who met them; one is numpy's."""
    rows = [row for row in text_of("docs/troubleshooting.md").splitlines() if row.startswith("| ")]
    quoted = {said for row in rows for said in re.findall(r'"(.+?)"', row.split("|")[1])}
    quoted -= {"module 'numpy' has no attribute 'bool'"}
    source = "".join(path.read_text() for path in (ROOT / "gluon_amp").rglob("*.py"))
    assert len(quoted) >= 4 and [message for message in quoted if message not in source] == []


def test_citation_names_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [amp.__version__]
    assert re.findall(r"^license: (.+)$", citation, re.MULTILINE) == ["Apache-2.0"]
