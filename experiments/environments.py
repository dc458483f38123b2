"""Virtual environments for programs that need other packages than this checkout's, made once."""

import os
import subprocess
from pathlib import Path
from typing import Mapping, Sequence

from experiments.matrix import find_python
from gluon_amp.base.messages import UsageError

STAMP = ".installed"  # what an environment was made from


def prepare(
    folder: Path,
    version: str,
    installed_from: str,
    installs: Sequence[Sequence[str]],
    variables: Mapping[str, str] = {},
) -> Path:
    """Return the Python of an environment; make it if it is new, or made from something else.

    Parameters
    ----------
    folder : Path
        Its last part is the name in messages.
    version : str
        The version of Python, as in ``3.11``.
    installed_from : str
        The text of the requirements.
    installs : sequence of sequence of str
        Arguments of ``pip install``, one call after the other.
    variables : mapping from str to str
        Added to the environment of pip.

    Raises
    ------
    UsageError
        The version of Python is not installed, or a requirement cannot be installed.
    """
    stamp, python = folder / STAMP, folder / "bin" / "python"
    text = f"python {version}\n{installed_from}"
    if stamp.exists() and stamp.read_text() == text:
        return python
    base = find_python(version)
    if base is None:
        raise UsageError(f"{folder.name} needs python{version}: install it.")
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    commands = [[base, "-m", "venv", "--clear", str(folder)]]
    for command in [*commands, *([*pip, *arguments] for arguments in installs)]:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", env={**os.environ, **variables}
        )
        if done.returncode:
            errors = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise UsageError(f"the environment of {folder.name} cannot be made: {errors[-1]}")
    stamp.write_text(text)
    return python
