"""Execute the notebooks: from each source in notebooks/*.py comes the page beside it, *.ipynb.

    python -m experiments.run_notebooks [--short] [NAME ...]

A page is written only if its notebook ran without an error, a warning or a word on stderr. The
cell tagged `parameters` says in its metadata what is `short`: those values follow it with --short.
"""

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
from gluon_amp.command_line import Parser, UsageError, positive_int
from gluon_amp.files import atomic

FOLDER = ROOT / "notebooks"
WARNING = re.compile(r"\w*Warning\b.*")
INJECTED = ["injected-parameters"]
# What would make a kernel of this machine or of this process another one
UNSET = ("PYTEST_CURRENT_TEST", "PYTHONWARNINGS")
SET = {
    "JUPYTER_PREFER_ENV_PATH": "1",  # the kernel of this Python, not that of the user
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # debugpy warns of frozen modules from Python 3.11 on
}


class NotebookError(Exception):
    """A notebook does not run as it should; the message is one sentence for the user."""


def sources(names: Sequence[str]) -> List[Path]:
    """Return the sources of those names, or all."""
    found = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
    for name in names:
        if name not in found:
            raise UsageError(f"there is no notebook {name!r} among {', '.join(found) or 'none'}.")
    return [found[name] for name in names or found]


def read(path: Path) -> Any:
    """Return the notebook of a source, with ids and metadata that are the same each time."""
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
    """Put a cell with the values of the short setting after the cell of parameters."""
    import nbformat

    for position, cell in enumerate(notebook.cells, 1):
        if "parameters" in cell.metadata.get("tags", ()) and "short" in cell.metadata:
            lines = [f"{key} = {value!r}" for key, value in cell.metadata["short"].items()]
            made = nbformat.v4.new_code_cell("\n".join(lines), metadata={"tags": INJECTED})
            notebook.cells.insert(position, made)
            return
    raise NotebookError(f"{name} has no cell tagged parameters with values for short.")


@contextlib.contextmanager
def environment() -> Iterator[Dict[str, str]]:
    """Give the environment of a kernel that reads no settings of the user."""
    with tempfile.TemporaryDirectory() as folder:
        given = {key: value for key, value in os.environ.items() if key not in UNSET}
        yield {**given, **SET, "IPYTHONDIR": folder}


def execute(notebook: Any, name: str, timeout: float) -> None:
    """Run the cells in a fresh kernel, in the folder of the notebooks."""
    import nbclient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    begun: List[Any] = []
    client = nbclient.NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
        coalesce_streams=True,
        record_timing=False,
        on_cell_start=lambda cell, cell_index: begun.append(cell),
    )
    try:
        with environment() as env:
            client.execute(env=env)
    except CellExecutionError as error:
        told = " ".join(f"{error.ename}: {error.evalue}".split())
        failure = f"raised {told.rstrip('.:')}"
    except CellTimeoutError:
        failure = f"took more than {timeout} s"
    except DeadKernelError:
        failure = "ended its kernel"
    else:
        notebook.metadata["language_info"].pop("version")
        return
    raise NotebookError(f"{place(notebook, begun[-1], name)} {failure}.")


def check(notebook: Any, name: str) -> None:
    """Raise for a cell that warned, or wrote to stderr."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            warning = WARNING.search(text)
            if warning or output.get("name") == "stderr":
                what = warning.group() if warning else text.strip().partition("\n")[0]
                how = "gave a warning" if warning else "wrote to stderr"
                raise NotebookError(f"{place(notebook, cell, name)} {how}: {what.rstrip('.')}.")


def code_cells(notebook: Any) -> List[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def place(notebook: Any, cell: Any, name: str) -> str:
    """Name a cell as its page does: by its number among the cells of code."""
    own = [one for one in code_cells(notebook) if one.metadata.get("tags") != INJECTED]
    return f"{name}, cell [{own.index(cell) + 1}]"


def run(path: Path, short: bool, timeout: float) -> str:
    """Run one notebook, write its page unless the run is short, and return what there is to say."""
    import nbformat

    begun = time.monotonic()
    notebook = read(path)
    if short:
        inject_short(notebook, path.stem)
    execute(notebook, path.stem, timeout)
    check(notebook, path.stem)
    told = f"{len(code_cells(notebook))} cells of code, {time.monotonic() - begun:.0f} s"
    if short:
        return told
    page = nbformat.writes(notebook).rstrip("\n").encode() + b"\n"
    atomic.write(path.with_suffix(".ipynb"), page)
    return f"{told}, {len(page) / 1000:.0f} kB"


def main(given: Optional[Sequence[str]] = None) -> int:
    """Run the notebooks that are named, or all; return the status of the process."""
    made = Parser(description=__doc__.split("\n", 1)[0])
    add = made.add_argument
    add("names", nargs="*", metavar="NAME", help="a notebook without its .py (default: all)")
    add("--short", action="store_true", help="run with the short values and write no page")
    add("--timeout", type=positive_int, default=600, metavar="SECONDS",
        help="longest time for a cell (default: %(default)s)")  # fmt: skip
    options = made.parse_args(given)
    failed = 0
    try:
        for path in sources(options.names):
            print(path.stem, flush=True)
            try:
                print(f"  {run(path, options.short, options.timeout)}", flush=True)
            except NotebookError as error:
                print(f"run_notebooks.py: {error}", file=sys.stderr)
                failed += 1
    except UsageError as error:
        print(f"run_notebooks.py: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"run_notebooks.py: {error.name} is not installed: run "
              "`pip install 'gluon-amp[notebooks]'`.", file=sys.stderr)  # fmt: skip
        return 2
    except OSError as error:
        print(f"run_notebooks.py: {error.filename}: {error.strerror}.", file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
