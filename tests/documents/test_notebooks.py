"""The notebooks' pages, and the program that executes their sources."""

import ast
import base64
import io
import re

import nbformat
import numpy as np
import pytest
from PIL import Image

from experiments import run_notebooks
from tests import ROOT

NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.py"))


def content(notebook):
    return [(cell.cell_type, cell.id, cell.metadata, cell.source) for cell in notebook.cells]


def texts(cells):
    """Yield the text of each output."""
    for output in (output for cell in cells for output in cell.outputs):
        data = output.get("data", {})
        yield output.get("text") or data.get("text/markdown") or data.get("text/plain", "")


def pictures(cells):
    """Yield the grey levels of each picture."""
    for output in (output for cell in cells for output in cell.outputs):
        if "image/png" in output.get("data", {}):
            png = base64.b64decode(output["data"]["image/png"])
            yield np.asarray(Image.open(io.BytesIO(png)).convert("L"))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_that_of_its_source_executed_without_faults(name):
    text = (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    page = nbformat.reads(text, as_version=4)
    source = run_notebooks.read(ROOT / "notebooks" / f"{name}.py")
    assert content(page) == content(source)
    assert {key: page.metadata.get(key) for key in source.metadata} == source.metadata
    cells = [cell for cell in page.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not any(o.output_type == "error" or o.get("name") == "stderr" for o in outputs)
    written = list(texts(cells))
    path = re.compile(rf"Warning|/(home|root|tmp)/|{re.escape(str(ROOT))}|\b0x[0-9a-f]{{8,}}")
    assert [match.group() for one in written for match in path.finditer(one)] == []
    grey = list(pictures(cells))
    assert len(grey) >= 2 and all(len(np.unique(image)) > 10 for image in grey)
    assert written[-1].splitlines()[-1].startswith("gluon_amp ")  # it ends with its environment
    assert len(text) < 1_000_000


@pytest.mark.parametrize("name", NAMES)
def test_a_source_begins_with_a_title_and_parameters(name):
    source = run_notebooks.read(ROOT / "notebooks" / f"{name}.py")
    words = [cell.source for cell in source.cells if cell.cell_type == "markdown"]
    assert source.cells[0].source == words[0] and words[0].startswith("# ")
    first, *rest = (cell for cell in source.cells if cell.cell_type == "code")
    assert first.metadata["tags"] == ["parameters"] and first.metadata["short"]
    assert not any("parameters" in cell.metadata.get("tags", ()) for cell in rest)
    names = [node for node in ast.walk(ast.parse(first.source)) if isinstance(node, ast.Name)]
    assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    assert {"SEED", *first.metadata["short"]} <= assigned


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_short_run(name, capsys):
    path = ROOT / "notebooks" / f"{name}.ipynb"
    before = path.read_bytes()
    assert (run_notebooks.main(["--short", name]), capsys.readouterr().err) == (0, "")
    assert path.read_bytes() == before


# ----------------------------------------------------------------------------------- the program

PARAMETERS = '# %% tags=["parameters"] short={"EPOCHS": 1}\nSEED, EPOCHS = 0, 3\n'


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a small notebook to the program's folder."""
    monkeypatch.setattr(run_notebooks, "FOLDER", tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")

    def write(name, *cells):
        (tmp_path / f"{name}.py").write_text(PARAMETERS + "".join(f"\n# %%\n{c}\n" for c in cells))

    return write


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "cell, sentence",
    [
        ("raise ValueError('no\\nsuch thing.')", "cell [2] raised ValueError: no such thing."),
        # the kernel reads the output of C from time to time
        ("import os, time\nos.write(2, b'of C')\ntime.sleep(1)", "wrote to stderr: of C"),
        pytest.param("print('FutureWarning: old')", "stderr: FutureWarning: old", marks=SLOW),
        pytest.param("import os\nos._exit(3)", "Kernel died", marks=SLOW),
        pytest.param("import time\ntime.sleep(60)", "timed out", marks=SLOW),
    ],
)
def test_a_failing_notebook_gets_one_sentence_and_no_page(
    write, tmp_path, monkeypatch, capsys, cell, sentence
):
    write("failing", cell)
    (tmp_path / "failing.ipynb").write_text("the old page")
    monkeypatch.setattr(run_notebooks, "LONGEST", 3)
    assert run_notebooks.main([]) == 2
    err = capsys.readouterr().err
    assert err.startswith("run_notebooks.py: failing") and sentence in err and err.count("\n") == 1
    assert (tmp_path / "failing.ipynb").read_text() == "the old page"


def test_a_page_has_outputs_and_is_the_same_every_time(write, tmp_path, capsys):
    drawing = "# %matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    write("good", "print(EPOCHS, flush=True)\nprint(SEED)", "6 * 7", "6 * 7", drawing)
    assert run_notebooks.main([]) == 0
    first = (tmp_path / "good.ipynb").read_bytes()
    page = nbformat.reads(first.decode(), as_version=4)
    assert list(texts(page.cells))[:3] == ["3\n0\n", "42", "42"]
    assert len(list(pictures(page.cells))) == 1
    assert content(page) == content(run_notebooks.read(tmp_path / "good.py"))
    assert run_notebooks.main(["good"]) == 0
    assert (tmp_path / "good.ipynb").read_bytes() == first
    assert run_notebooks.main(["good", "bad"]) == 2
    assert "there is no notebook 'bad' among good." in capsys.readouterr().err


def test_a_short_run_takes_the_short_values_and_writes_no_page(write, tmp_path):
    write("short", "open('seen', 'w').write(f'{SEED} {EPOCHS}')")
    assert run_notebooks.main(["--short"]) == 0
    assert (tmp_path / "seen").read_text() == "0 1" and not (tmp_path / "short.ipynb").exists()
