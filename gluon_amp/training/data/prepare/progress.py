"""Progress bars of downloads, extraction and packing, which take minutes."""

from typing import Optional

from gluon_amp.training.data.source import DataError

try:
    import tqdm
except ImportError:
    tqdm = None

BYTES = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}


def bar(label: str, total: Optional[int], done: int = 0, in_bytes: bool = False) -> "tqdm.tqdm":
    """Return a progress bar, which is removed when it is closed. Without a terminal, show none.

    `total` and `done` are numbers of bytes, or of images.

    Raises
    ------
    DataError
        tqdm is not installed.
    """
    if tqdm is None:
        raise DataError("tqdm is not installed: run `pip install 'gluon-amp[data]'`.")
    unit = BYTES if in_bytes else {"unit": "img"}
    return tqdm.tqdm(desc=label, total=total, initial=done, leave=False, disable=None, **unit)
