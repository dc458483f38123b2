"""Progress bars of what takes minutes: downloads, extraction, packing."""

from typing import Optional

from gluon_amp.data.source import DataError

try:
    import tqdm
except ImportError:
    tqdm = None

BYTES = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}


def bar(what: str, total: Optional[int], done: int = 0, in_bytes: bool = False) -> "tqdm.tqdm":
    """Return a progress bar that is gone when it is closed, and not there without a terminal.

    Parameters
    ----------
    what : str
        Stands in front of it.
    total, done : int
        How much there is, and how much of it is done already.
    in_bytes : bool
        Count bytes, else images.

    Raises
    ------
    DataError
        tqdm is not installed.
    """
    if tqdm is None:
        raise DataError("tqdm is not installed: run `pip install 'gluon-amp[data]'`.")
    how = BYTES if in_bytes else {"unit": "img"}
    return tqdm.tqdm(desc=what, total=total, initial=done, leave=False, disable=None, **how)
