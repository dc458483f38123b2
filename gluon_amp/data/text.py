"""Text that every machine has: the sources of Python's own standard library, as characters.

The order of the files is shuffled once by a fixed seed, so that a part of them is a cross-section.
Every tenth file validates, whatever is cut off, so no file is on both sides.
"""

import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from gluon_amp.data.source import DataError, read_file

from mxnet import nd
from mxnet.ndarray import NDArray

# Printable ASCII, newline and tab; whatever else there is, is the last class.
VOCABULARY = "".join(map(chr, range(32, 127))) + "\n\t"
UNKNOWN = len(VOCABULARY)
CLASSES = UNKNOWN + 1

SPLIT_SEED = 0
SHARE = 10  # one file in ten validates, and a tenth as many characters as train
# Beside the standard library's own: written when Python is built or installed.
FOREIGN = ("_sysconfigdata*.py", "sitecustomize.py", "usercustomize.py")


def encode(text: str) -> np.ndarray:
    """Return the class of each character, int32, 0 to `UNKNOWN`."""
    table = np.full(128, UNKNOWN, np.int32)
    table[[ord(character) for character in VOCABULARY]] = np.arange(UNKNOWN)
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.where(points < len(table), table[points % len(table)], UNKNOWN).astype(np.int32)


def read_sources(folder: Path) -> Dict[str, str]:
    """Return the text of each Python file right in a folder, by name; those not UTF-8 left out.

    Raises
    ------
    DataError
        There is none: Python was installed without its sources, or in a zip file.
    """
    foreign = {path for pattern in FOREIGN for path in folder.glob(pattern)}
    texts = {}
    for path in sorted(set(folder.glob("*.py")) - foreign):
        try:
            texts[path.name] = read_file(path).decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    if not texts:
        raise DataError(
            f"{folder} has no sources of Python's standard library: use a Python that is "
            "installed with its .py files, not in a zip file or compiled alone."
        )
    return texts


def split(names: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Return the names of the files that train and of those that validate, shuffled."""
    # RandomState and not default_rng: numpy promises never to change its stream
    order = np.random.RandomState(SPLIT_SEED).permutation(len(names))
    shuffled = [sorted(names)[index] for index in order]
    validating = shuffled[::SHARE]
    return [name for name in shuffled if name not in validating], validating


@dataclass(frozen=True)
class Text:
    """Two texts as classes of characters: int32, (characters,)."""

    name: str
    train: np.ndarray
    val: np.ndarray


def open_text(characters: int, folder: Optional[Path] = None) -> Text:
    """Return the first so many characters to train on, and a tenth as many to validate.

    Parameters
    ----------
    characters : int
    folder : Path, optional
        Holds the sources; that of Python's standard library, if not given.

    Raises
    ------
    DataError
        There are no sources, or fewer characters.
    """
    texts = read_sources(folder or Path(sysconfig.get_path("stdlib")))
    version = platform.python_version()
    parts = []
    for names, wanted, use in zip(
        split(list(texts)), (characters, characters // SHARE), ("train on", "validate")
    ):
        joined = encode("".join(texts[name] for name in names))
        if len(joined) < wanted:
            raise DataError(
                f"the standard library of Python {version} has {len(joined)} characters to {use}, "
                f"and {wanted} were asked for: give --characters a smaller number."
            )
        parts.append(joined[:wanted])
    return Text(f"standard library of Python {version}", *parts)


class Chunk(NamedTuple):
    """A few characters of each stream, and those that follow them; int32, (streams, length)."""

    inputs: NDArray
    labels: NDArray
    first: bool  # the streams begin here


class Chunks:
    """A text as parallel streams, cut across into chunks, in their order.

    A row of a chunk goes on where the same row of the chunk before ended. Characters that do not
    fill the streams evenly are left out at the end.

    Parameters
    ----------
    codes : ndarray
        Classes of characters, (characters,).
    streams, length : int
        Rows and columns of a chunk.
    whole : bool
        Leave out a last chunk that would be shorter.
    """

    unreadable = ()  # nothing here can be

    def __init__(self, codes: np.ndarray, streams: int, length: int, whole: bool):
        columns = (len(codes) - 1) // streams
        if whole:
            columns -= columns % length
        size = columns * streams
        self._inputs = codes[:size].reshape(streams, columns)
        self._labels = codes[1 : size + 1].reshape(streams, columns)
        self._length = length
        self.batch_size = streams * length
        self.images = size  # samples, as training counts them: characters to be predicted

    def __len__(self) -> int:
        return -(-self._inputs.shape[1] // self._length)

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Chunk]:
        """Yield the chunks from number `start` on; the same in every epoch."""
        for begin in range(start * self._length, self._inputs.shape[1], self._length):
            columns = slice(begin, begin + self._length)
            parts = (nd.array(all_[:, columns], dtype="int32")
                     for all_ in (self._inputs, self._labels))  # fmt: skip
            yield Chunk(*parts, begin == 0)

    def __iter__(self) -> Iterator[Chunk]:
        return self.epoch()
