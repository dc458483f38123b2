"""Execute the notebooks: each source in notebooks/*.py becomes the page *.ipynb beside it.

    python -m experiments.run_notebooks [--short] [NAME ...]

A page is written only if its notebook ran without errors, warnings and output on stderr. The
metadata of the cell tagged `parameters` has values named `short`. With --short, they replace the
parameters, and no page is written.
"""

import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from experiments import ROOT
from gluon_amp.base.messages import UsageError, from_extra
from gluon_amp.files import atomic
from gluon_amp.training.command_line import Parser, status_of

FOLDER = ROOT / "notebooks"
LONGEST = 600  # seconds for a cell
WARNING = re.compile(r"\w*Warning\b.*")
# The environment of a kernel must not depend on the user or on this process.
UNSET = ("PYTEST_CURRENT_TEST", "PYTHONWARNINGS")
SET = {
    "JUPYTER_PREFER_ENV_PATH": "1",  # use the kernel of this Python, not that of the user
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # debugpy warns about frozen modules since Python 3.11
}


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


def execute(notebook: Any, name: str) -> None:
    """Run the cells in a new kernel, in the folder of the notebooks.

    A cell that fails, warns or writes to stderr is a `UsageError`.
    """
    import nbclient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    client = nbclient.NotebookClient(
        notebook,
        timeout=LONGEST,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
        coalesce_streams=True,
        record_timing=False,
    )
    failure = None
    with tempfile.TemporaryDirectory() as settings:
        inherited = {key: value for key, value in os.environ.items() if key not in UNSET}
        try:
            client.execute(env={**inherited, **SET, "IPYTHONDIR": settings})
        except CellExecutionError as error:
            failure = " ".join(f"raised {error.ename}: {error.evalue}".split())
        except (CellTimeoutError, DeadKernelError) as error:
            failure = str(error).strip().partition("\n")[0]
    for number, cell in enumerate(code, 1):
        for output in cell.get("outputs", ()):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            warning = WARNING.search(text)
            if output.output_type == "error":
                raise UsageError(f"{name}, cell [{number}] {failure}")
            if warning or output.get("name") == "stderr":
                said = warning.group() if warning else text.strip().partition("\n")[0]
                raise UsageError(f"{name}, cell [{number}] warned or wrote to stderr: {said}")
    if failure:
        raise UsageError(f"{name}: {failure}")
    notebook.metadata["language_info"].pop("version")


def run(name: str, short: bool) -> None:
    """Run one notebook, and write its page unless the run is short."""
    import nbformat

    print(name, flush=True)
    notebook = read(FOLDER / f"{name}.py")
    for cell in notebook.cells if short else ():
        for key, value in cell.metadata.get("short", {}).items():
            cell.source += f"\n{key} = {value!r}"
    execute(notebook, name)
    if not short:
        page = nbformat.writes(notebook).rstrip() + "\n"
        atomic.write(FOLDER / f"{name}.ipynb", page.encode())


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the notebooks; return the status of the process."""
    parser = Parser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks (default: all)")
    short = "use the parameters' short values, and write no page"
    parser.add_argument("--short", action="store_true", help=short)
    options = parser.parse_args(arguments)

    def run_all() -> None:
        known = sorted(path.stem for path in FOLDER.glob("*.py"))
        for name in options.names:
            if name not in known:
                raise UsageError(f"there is no notebook {name!r} among {', '.join(known)}.")
        with from_extra("notebooks", "jupytext or nbclient is not installed"):
            for name in options.names or known:
                run(name, options.short)

    return status_of("run_notebooks.py", run_all)


if __name__ == "__main__":
    sys.exit(main())
