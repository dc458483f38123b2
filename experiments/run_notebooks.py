"""Execute the notebooks: each source in notebooks/*.py becomes the page *.ipynb beside it.

    python -m experiments.run_notebooks [--short] [NAME ...]

A page is written only if its notebook ran without errors, warnings and output on stderr. The
metadata of the cell tagged `parameters` has values named `short`. With --short, they replace the
parameters.
"""

import argparse
import contextlib
import hashlib
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

from experiments import ROOT
from gluon_amp.base.messages import UsageError
from gluon_amp.files import atomic
from gluon_amp.training.command_line import Parser, positive_int, status_of

FOLDER = ROOT / "notebooks"
WARNING = re.compile(r"\w*Warning\b.*")
INJECTED = ["injected-parameters"]
# The environment of a kernel must not depend on the user or on this process.
UNSET = ("PYTEST_CURRENT_TEST", "PYTHONWARNINGS")
SET = {
    "JUPYTER_PREFER_ENV_PATH": "1",  # use the kernel of this Python, not that of the user
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # debugpy warns about frozen modules since Python 3.11
}


class NotebookError(Exception):
    """A notebook failed; the message is one sentence for the user."""


def sources(names: Sequence[str]) -> List[Path]:
    """Return the sources of the named notebooks, or of all."""
    paths = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
    for name in names:
        if name not in paths:
            raise UsageError(f"there is no notebook {name!r} among {', '.join(paths) or 'none'}.")
    return [paths[name] for name in names or paths]


def read(path: Path) -> Any:
    """Return the notebook of a source, with ids and metadata that depend on the source alone."""
    import jupytext

    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata.get("jupytext", {}).pop("text_representation", None)
    seen: Dict[str, int] = {}
    for cell in notebook.cells:
        seen[cell.source] = seen.get(cell.source, 0) + 1
        text = f"{cell.cell_type} {seen[cell.source]} {cell.source}"
        cell.id = hashlib.sha256(text.encode()).hexdigest()[:8]
    return notebook


def inject_short(notebook: Any, name: str) -> None:
    """Insert a cell with the short values after the cell of parameters."""
    import nbformat

    for position, cell in enumerate(notebook.cells, 1):
        if "parameters" in cell.metadata.get("tags", ()) and "short" in cell.metadata:
            lines = [f"{key} = {value!r}" for key, value in cell.metadata["short"].items()]
            injected = nbformat.v4.new_code_cell("\n".join(lines), metadata={"tags": INJECTED})
            notebook.cells.insert(position, injected)
            return
    raise NotebookError(f"{name} has no cell tagged parameters with values for short.")


@contextlib.contextmanager
def environment() -> Iterator[Dict[str, str]]:
    """Yield the environment of a kernel, which does not read the user's settings."""
    with tempfile.TemporaryDirectory() as folder:
        inherited = {key: value for key, value in os.environ.items() if key not in UNSET}
        yield {**inherited, **SET, "IPYTHONDIR": folder}


def execute(notebook: Any, name: str, timeout: float) -> None:
    """Run the cells in a new kernel, in the folder of the notebooks."""
    import nbclient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    started: List[Any] = []
    client = nbclient.NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
        coalesce_streams=True,
        record_timing=False,
        on_cell_start=lambda cell, cell_index: started.append(cell),
    )
    try:
        with environment() as env:
            client.execute(env=env)
    except CellExecutionError as error:
        message = " ".join(f"{error.ename}: {error.evalue}".split())
        failure = f"raised {message.rstrip('.:')}"
    except CellTimeoutError:
        failure = f"took more than {timeout} s"
    except DeadKernelError:
        failure = "ended its kernel"
    else:
        notebook.metadata["language_info"].pop("version")
        return
    raise NotebookError(f"{cell_name(notebook, started[-1], name)} {failure}.")


def check(notebook: Any, name: str) -> None:
    """Raise `NotebookError` for a cell that warned or wrote to stderr."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            warning = WARNING.search(text)
            if warning or output.get("name") == "stderr":
                message = warning.group() if warning else text.strip().partition("\n")[0]
                failure = "gave a warning" if warning else "wrote to stderr"
                cell_id = cell_name(notebook, cell, name)
                raise NotebookError(f"{cell_id} {failure}: {message.rstrip('.')}.")


def code_cells(notebook: Any) -> List[Any]:
    """Return the cells with code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def cell_name(notebook: Any, cell: Any, name: str) -> str:
    """Return the number of a cell on the page, without counting injected cells."""
    cells = [one for one in code_cells(notebook) if one.metadata.get("tags") != INJECTED]
    return f"{name}, cell [{cells.index(cell) + 1}]"


def run(path: Path, short: bool, timeout: float) -> str:
    """Run one notebook, write its page unless the run is short, and return a summary."""
    import nbformat

    start = time.monotonic()
    notebook = read(path)
    if short:
        inject_short(notebook, path.stem)
    execute(notebook, path.stem, timeout)
    check(notebook, path.stem)
    summary = f"{len(code_cells(notebook))} cells of code, {time.monotonic() - start:.0f} s"
    if short:
        return summary
    page = nbformat.writes(notebook).rstrip("\n").encode() + b"\n"
    atomic.write(path.with_suffix(".ipynb"), page)
    return f"{summary}, {len(page) / 1000:.0f} kB"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the named notebooks, or all; return the status of the process."""
    parser = Parser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="a notebook without its .py (default: all)")
    add("--short", action="store_true", help="use the short values and write no page")
    add(
        "--timeout",
        type=positive_int,
        default=600,
        metavar="SECONDS",
        help="longest time for a cell (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    return status_of("run_notebooks.py", lambda: run_all(options))


def run_all(options: argparse.Namespace) -> int:
    """Run the notebooks; return 1 if one has failed."""
    status = 0
    for path in sources(options.names):
        print(path.stem, flush=True)
        try:
            print(f"  {run(path, options.short, options.timeout)}", flush=True)
        except NotebookError as error:
            print(f"run_notebooks.py: {error}", file=sys.stderr)
            status = 1
        except ModuleNotFoundError as error:
            remedy = "run `pip install 'gluon-amp[notebooks]'`"
            raise UsageError(f"{error.name} is not installed: {remedy}.") from None
    return status


if __name__ == "__main__":
    sys.exit(main())
