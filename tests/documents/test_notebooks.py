"""The notebooks' sources and pages, and the program that executes them."""

import ast
import base64
import copy
import io
import re
import sys

import nbformat
import numpy as np
import pytest
from PIL import Image

from experiments import run_notebooks
from tests import ROOT

SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
names = pytest.mark.parametrize("name", [path.stem for path in SOURCES])


# --------------------------------------------------------------------- checks of a page


def code_cells(page):
    return [cell for cell in page.cells if cell.cell_type == "code"]


def outputs(page):
    return [output for cell in code_cells(page) for output in cell.outputs]


def texts(page):
    """Yield the text of each output."""
    for output in outputs(page):
        data = output.get("data", {})
        yield output.get("text") or data.get("text/markdown") or data.get("text/plain", "")


def pictures(page):
    """Yield the grey levels of each picture."""
    for output in outputs(page):
        if "image/png" in output.get("data", {}):
            png = base64.b64decode(output["data"]["image/png"])
            yield np.asarray(Image.open(io.BytesIO(png)).convert("L"))


def was_executed_from_top_to_bottom(page):
    counts = [cell.execution_count for cell in code_cells(page)]
    assert counts == list(range(1, len(counts) + 1))


def has_no_error_and_no_stderr(page):
    assert [output for output in outputs(page) if output.output_type == "error"] == []
    assert [output for output in outputs(page) if output.get("name") == "stderr"] == []


def has_no_warning(page):
    assert [text for text in texts(page) if "Warning" in text] == []


def has_two_pictures_that_are_not_blank(page):
    images = list(pictures(page))
    assert len(images) >= 2
    for grey in images:
        assert (grey != grey[0, 0]).mean() > 0.01
        assert len(np.unique(grey)) > 10


def names_nothing_of_the_machine(page):
    path = re.compile(rf"/(home|root|tmp)/|{re.escape(str(ROOT))}|\b0x[0-9a-f]{{8,}}")
    assert [match.group() for text in texts(page) for match in path.finditer(text)] == []


def fits_its_columns(page):
    words = [cell.source for cell in page.cells if cell.cell_type == "markdown"]
    lines = [line for text in words for line in text.splitlines() if "](" not in line]
    assert [line for line in lines if len(line) > 78] == []
    assert [line for text in texts(page) for line in text.splitlines() if len(line) > 80] == []


def begins_with_words_and_parameters(page):
    assert page.cells[0].cell_type == "markdown"
    assert page.cells[0].source.startswith("# ")
    first, *rest = code_cells(page)
    assert first.metadata["tags"] == ["parameters"]
    assert not any("parameters" in cell.metadata.get("tags", ()) for cell in rest)
    names = [node for node in ast.walk(ast.parse(first.source)) if isinstance(node, ast.Name)]
    assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    assert "SEED" in assigned
    assert first.metadata["short"]
    assert set(first.metadata["short"]) <= assigned


def ends_with_its_environment(page):
    assert page.cells[-1].cell_type == "code"
    last = list(texts(page))[-1]
    assert page.cells[-1].outputs
    assert last.splitlines()[-1].startswith("gluon_amp ")


def is_small(page):
    assert len(nbformat.writes(page)) < 1_000_000


CHECKS = (
    was_executed_from_top_to_bottom,
    has_no_error_and_no_stderr,
    has_no_warning,
    has_two_pictures_that_are_not_blank,
    names_nothing_of_the_machine,
    fits_its_columns,
    begins_with_words_and_parameters,
    ends_with_its_environment,
    is_small,
)


def test_every_source_has_its_page():
    pages = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {path.stem for path in SOURCES} == pages
    assert pages


@names
@pytest.mark.parametrize("check", CHECKS)
def test_a_page(check, name):
    check(nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4))


def differences(source, page):
    """Return the differences between a source and a page, cell by cell."""

    def content(notebook):
        return [(cell.cell_type, cell.id, cell.metadata, cell.source) for cell in notebook.cells]

    pairs = [(one, other) for one, other in zip(content(source), content(page)) if one != other]
    if len(source.cells) != len(page.cells):
        pairs.append((len(source.cells), len(page.cells)))
    metadata = {key: page.metadata.get(key) for key in source.metadata}
    return pairs if metadata == source.metadata else [*pairs, (source.metadata, metadata)]


@names
def test_a_page_is_that_of_its_source(name):
    page = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    source = run_notebooks.read(ROOT / "notebooks" / f"{name}.py")
    assert differences(source, page) == []
    assert "version" not in page.metadata["language_info"]


@names
@pytest.mark.slow
def test_a_short_run(name, capsys):
    path = ROOT / "notebooks" / f"{name}.ipynb"
    before = path.read_bytes()
    status = run_notebooks.main(["--short", name])
    assert (status, capsys.readouterr().err) == (0, "")
    assert path.read_bytes() == before


# ------------------------------------------------------------ the checks detect faults


def picture(grey):
    file = io.BytesIO()
    Image.fromarray(grey.astype(np.uint8)).save(file, "png")
    data = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": "<Figure>"}
    return nbformat.v4.new_output("display_data", data)


def printed(text, name="stdout"):
    return nbformat.v4.new_output("stream", name=name, text=text)


@pytest.fixture(scope="module")
def good():
    """A page without faults."""
    new, words = nbformat.v4.new_code_cell, nbformat.v4.new_markdown_cell
    gradient = np.arange(64 * 64).reshape(64, 64) % 256
    metadata = {"tags": ["parameters"], "short": {"EPOCHS": 1}}
    cells = [
        words("# A title"),
        new("SEED = 0\nEPOCHS = 3", metadata=metadata),
        new("draw()", outputs=[picture(gradient), picture(gradient.T)]),
        new("print(...)", outputs=[printed("Python 3.11\ngluon_amp 0.1.0\n")]),
    ]
    for number, cell in enumerate(cells[1:], 1):
        cell.execution_count = number
    return nbformat.v4.new_notebook(cells=cells)


@pytest.mark.parametrize("check", CHECKS)
def test_a_good_page_passes(check, good):
    check(good)


def in_cell(number, output):
    return lambda page: page.cells[number].outputs.insert(0, output)


def assigns(number, **values):
    return lambda page: page.cells[number].update(values)


BLANK = picture(np.full((64, 64), 255))
ERROR = nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])
SECOND = {"tags": ["parameters"]}  # metadata of another cell of parameters
FAULTS = [
    (was_executed_from_top_to_bottom, assigns(2, execution_count=3)),
    (was_executed_from_top_to_bottom, assigns(3, execution_count=None)),
    (has_no_error_and_no_stderr, in_cell(2, ERROR)),
    (has_no_error_and_no_stderr, in_cell(2, printed("oh\n", "stderr"))),
    (has_no_warning, in_cell(2, printed("x.py:1: UserWarning: old\n"))),
    (has_two_pictures_that_are_not_blank, lambda page: page.cells[2].outputs.pop()),
    (has_two_pictures_that_are_not_blank, in_cell(2, BLANK)),
    (names_nothing_of_the_machine, in_cell(2, printed("/home/me/x.py\n"))),
    (names_nothing_of_the_machine, in_cell(2, printed(f"{ROOT}\n"))),
    (names_nothing_of_the_machine, in_cell(2, printed("<Net object at 0x7f00aabbccdd>\n"))),
    (fits_its_columns, in_cell(2, printed("x" * 81))),
    (fits_its_columns, assigns(0, source="# " + "x" * 77)),
    (begins_with_words_and_parameters, lambda page: page.cells.pop(0)),
    (begins_with_words_and_parameters, assigns(0, source="A title")),
    (begins_with_words_and_parameters, assigns(1, source="EPOCHS = 3")),
    (begins_with_words_and_parameters, assigns(1, source="SEED = 0\nEPOCH = 3")),
    (begins_with_words_and_parameters, lambda page: page.cells[1].metadata["short"].clear()),
    (begins_with_words_and_parameters, lambda page: page.cells[2].update(metadata=SECOND)),
    (ends_with_its_environment, lambda page: page.cells.pop()),
    (ends_with_its_environment, assigns(3, outputs=[printed("gluon_amp 0.1.0\nPython\n")])),
    (is_small, in_cell(2, printed("x\n" * 200_000))),
]


@pytest.mark.parametrize("check, damage", FAULTS)
def test_a_fault_is_detected(check, damage, good):
    page = copy.deepcopy(good)
    damage(page)
    with pytest.raises((AssertionError, KeyError)):
        check(page)


@pytest.mark.parametrize(
    "damage",
    [
        assigns(2, source="draw() "),
        assigns(2, id="other"),
        assigns(1, metadata={}),
        lambda page: page.cells.pop(),
        lambda page: page.metadata.update(kernelspec={"name": "other"}),
    ],
)
def test_a_page_of_another_source_is_detected(damage, good):
    source = copy.deepcopy(good)
    source.metadata["kernelspec"] = {"name": "python3"}
    page = copy.deepcopy(source)
    assert differences(source, page) == []
    damage(page)
    assert differences(source, page) != []


# ----------------------------------------------------------------------------- the runner

PARAMETERS = '# %% tags=["parameters"] short={"EPOCHS": 1}\nSEED, EPOCHS = 0, 3\n'


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a small notebook to the runner's folder."""
    monkeypatch.setattr(run_notebooks, "FOLDER", tmp_path)

    def write(name, *cells):
        (tmp_path / f"{name}.py").write_text(PARAMETERS + "".join(f"\n# %%\n{c}\n" for c in cells))

    return write


@pytest.fixture
def run(capsys):
    """Run the program; return its status and its output on stdout and stderr."""

    def run(*arguments):
        return (run_notebooks.main(list(arguments)), *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    "cell, sentence",
    [
        ("raise ValueError('no\\nsuch thing.')", "raised ValueError: no such thing."),
        ("assert EPOCHS == 1", "raised AssertionError.\n"),
        ("import os\nos._exit(3)", "ended its kernel."),
        ("import time\ntime.sleep(60)", "took more than 3 s."),
        ("import warnings\nwarnings.warn('old')", "gave a warning: UserWarning: old."),
        ("print('FutureWarning: later.')", "gave a warning: FutureWarning: later."),
        ("import sys\nprint('oh', file=sys.stderr)", "wrote to stderr: oh."),
        (
            # the kernel reads the output of C from time to time
            "import os, time\nfor _ in range(9): os.write(2, b'of C')\ntime.sleep(1)",
            "wrote to stderr: of C",
        ),
    ],
)
def test_a_failing_notebook_gets_one_sentence_and_no_page(write, run, tmp_path, cell, sentence):
    write("failing", cell, "print('last')")
    (tmp_path / "failing.ipynb").write_text("the old page")
    status, out, err = run("--timeout", "3")
    assert (status, out) == (1, "failing\n")
    assert err.startswith(f"run_notebooks.py: failing, cell [2] {sentence}")
    assert err.count("\n") == 1
    assert (tmp_path / "failing.ipynb").read_text() == "the old page"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["failing.ipynb", "failing.py"]


def test_a_failure_does_not_stop_the_others(write, run, tmp_path):
    write("a", "1 / 0")
    write("b", "print(EPOCHS)")
    status, out, err = run()
    message = "a, cell [2] raised ZeroDivisionError: division by zero"
    assert (status, err) == (1, f"run_notebooks.py: {message}.\n")
    assert re.fullmatch(r"a\nb\n  2 cells of code, \d+ s, \d kB\n", out)
    assert not (tmp_path / "a.ipynb").exists()
    assert (tmp_path / "b.ipynb").exists()


def test_a_page_has_outputs_and_is_the_same_every_time(write, run, tmp_path):
    cells = "print(EPOCHS, flush=True)\nprint(SEED)", "6 * 7", "6 * 7"
    write("good", *cells)
    assert run("good")[0] == 0
    page = nbformat.read(tmp_path / "good.ipynb", as_version=4)
    assert list(texts(page)) == ["3\n0\n", "42", "42"]
    assert [cell.execution_count for cell in page.cells] == [1, 2, 3, 4]
    assert len({cell.id for cell in page.cells}) == 4
    assert [set(cell.metadata) for cell in page.cells] == [{"tags", "short"}, set(), set(), set()]
    assert differences(run_notebooks.read(tmp_path / "good.py"), page) == []
    assert "version" not in page.metadata["language_info"]
    assert "text_representation" not in page.metadata.get("jupytext", {})
    first = (tmp_path / "good.ipynb").read_bytes()
    assert first.endswith(b"}\n") and not first.endswith(b"\n\n")
    assert run("good")[0] == 0
    assert (tmp_path / "good.ipynb").read_bytes() == first


def test_a_figure_is_shown_once_with_any_backend(write, run, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    drawing = "# %matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    write("drawn", drawing)
    assert run("drawn")[0] == 0
    page = nbformat.read(tmp_path / "drawn.ipynb", as_version=4)
    assert len(list(pictures(page))) == 1


def test_short_values_follow_the_parameters_and_no_page_is_written(write, run, tmp_path):
    write("good", "open('seen', 'w').write(f'{SEED} {EPOCHS}')")
    status, out, err = run("--short", "good")
    assert (status, err) == (0, "")
    assert re.fullmatch(r"good\n  3 cells of code, \d+ s\n", out)
    assert (tmp_path / "seen").read_text() == "0 1"
    assert not (tmp_path / "good.ipynb").exists()


def test_a_short_run_numbers_cells_as_on_the_page(write, run):
    write("failing", "assert EPOCHS == 3")
    assert "failing, cell [2] raised AssertionError" in run("--short")[2]


def test_a_short_run_needs_short_values(run, write, tmp_path):
    (tmp_path / "bare.py").write_text("# %%\nSEED = 0\n")
    status, _, err = run("--short", "bare")
    sentence = "run_notebooks.py: bare has no cell tagged parameters with values for short.\n"
    assert (status, err) == (1, sentence)


def test_an_unknown_name_is_refused_before_anything_runs(write, run):
    write("good", "print(1)")
    status, out, err = run("good", "bad")
    assert (status, out) == (2, "")
    assert err == "run_notebooks.py: there is no notebook 'bad' among good.\n"


@pytest.mark.parametrize("options", [["--timeout", "0"], ["--quick"]])
def test_wrong_options_are_refused_in_one_sentence(capsys, options):
    with pytest.raises(SystemExit) as stop:
        run_notebooks.main(options)
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_missing_extra_is_named(write, run, monkeypatch):
    write("good", "print(1)")
    monkeypatch.setitem(sys.modules, "jupytext", None)
    status, _, err = run("good")
    assert status == 2
    assert err == (
        "run_notebooks.py: jupytext is not installed: run `pip install 'gluon-amp[notebooks]'`.\n"
    )


def test_a_folder_that_cannot_be_written_is_named(write, run, monkeypatch):
    write("good", "print(1)")

    def full(path, data):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(run_notebooks.atomic, "write", full)
    status, _, err = run("good")
    assert status == 2
    assert err.endswith("good.ipynb: No space left on device.\n")
