"""Names of checkpoints that hold the number of updates, as `resnet-{step}.ckpt`."""

import os
import re
from typing import Any, List, Tuple

from mxnet import gluon

STEP = "{step}"  # in a name: replaced by the number of updates


def numbered(folder: str, name: str) -> List[Tuple[int, str]]:
    """Return steps and paths of a folder's files with such a name, lowest step first."""
    first, *others = map(re.escape, name.split(STEP))
    # If the name holds `{step}` more than once, all places have to show the same number.
    pattern = first + "".join((r"\1" if k else r"(\d+)") + text for k, text in enumerate(others))
    matches = [(re.fullmatch(pattern, entry), entry) for entry in os.listdir(folder)]
    return sorted((int(match[1]), os.path.join(folder, entry)) for match, entry in matches if match)


def check_order(caller: str, path: Any) -> None:
    """Raise `TypeError` if a net stands where the path belongs."""
    if isinstance(path, gluon.Block):
        raise TypeError(f"{caller}() expects the file first: amp.{caller}('file', net, trainer).")


def newest(path: str) -> str:
    """Return the path with the highest step, or a path without `{step}` itself."""
    folder, name = os.path.split(path)
    if STEP not in name:
        return path
    files = numbered(folder, name)
    if not files:
        raise FileNotFoundError(f"There is no checkpoint {path}: none has been saved yet.")
    return files[-1][1]
