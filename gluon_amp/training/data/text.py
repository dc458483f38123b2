"""Text that every machine has, as characters: the sources of Python's own standard library.

The files are shuffled with a fixed seed, so that the first are a cross-section. Every tenth is for
validation, however many characters are used, so no file is in both sets.
"""

import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from gluon_amp.training.data.source import DataError, read_file

from mxnet import nd
from mxnet.ndarray import NDArray

# Printable ASCII, newline and tab. Every other character is in the last class.
VOCABULARY = "".join(map(chr, range(32, 127))) + "\n\t"
UNKNOWN = len(VOCABULARY)
CLASSES = UNKNOWN + 1

SPLIT_SEED = 0
SHARE = 10  # one file in ten is for validation, and a tenth as many characters as for training
# Not sources of the standard library, but written when Python is built or installed.
FOREIGN = ("_sysconfigdata*.py", "sitecustomize.py", "usercustomize.py")


def encode(text: str) -> np.ndarray:
    """Return the class of each character, int32, 0 to `UNKNOWN`."""
    table = np.full(128, UNKNOWN, np.int32)
    table[[ord(character) for character in VOCABULARY]] = np.arange(UNKNOWN)
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.where(points < len(table), table[points % len(table)], UNKNOWN).astype(np.int32)


def read_sources(folder: Path) -> Dict[str, str]:
    """Return the text of each Python file in a folder, by name; files must be in UTF-8."""
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
            "installed with its .py files, not with a zip file or with compiled files only."
        )
    return texts


def split(names: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Return the names of the files for training and of those for validation, shuffled."""
    # RandomState and not default_rng: numpy guarantees that its stream never changes
    order = np.random.RandomState(SPLIT_SEED).permutation(len(names))
    shuffled = [sorted(names)[index] for index in order]
    for_validation = shuffled[::SHARE]
    return [name for name in shuffled if name not in for_validation], for_validation


@dataclass(frozen=True)
class Text:
    """A training and a validation text as classes of characters: int32, (characters,)."""

    name: str
    train: np.ndarray
    val: np.ndarray


def open_text(characters: int, folder: Optional[Path] = None) -> Text:
    """Return so many characters of the sources in a folder, and a tenth as many for validation."""
    texts = read_sources(folder or Path(sysconfig.get_path("stdlib")))
    version = platform.python_version()
    parts = []
    for names, wanted, purpose in zip(
        split(list(texts)), (characters, characters // SHARE), ("training", "validation")
    ):
        joined = encode("".join(texts[name] for name in names))
        if len(joined) < wanted:
            raise DataError(
                f"the standard library of Python {version} has {len(joined)} characters for "
                f"{purpose}, but {wanted} were requested: use fewer --characters."
            )
        parts.append(joined[:wanted])
    return Text(f"standard library of Python {version}", *parts)


class Chunk(NamedTuple):
    """Characters of each stream and the characters that follow them; int32, (streams, length)."""

    inputs: NDArray
    labels: NDArray
    first: bool  # whether the streams begin here


class Chunks:
    """A text as parallel streams, the rows of chunks; if `whole`, without a shorter last chunk."""

    unreadable = ()  # as for batches of images; text has none

    def __init__(self, codes: np.ndarray, streams: int, length: int, whole: bool):
        columns = (len(codes) - 1) // streams
        if whole:
            columns -= columns % length
        size = columns * streams
        self._inputs = codes[:size].reshape(streams, columns)
        self._labels = codes[1 : size + 1].reshape(streams, columns)
        self._length = length
        self.batch_size = streams * length
        self.images = size  # training counts the characters to be predicted

    def __len__(self) -> int:
        return -(-self._inputs.shape[1] // self._length)

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Chunk]:
        """Yield the chunks from number `start` on. They are the same in every epoch."""
        for begin in range(start * self._length, self._inputs.shape[1], self._length):
            columns = slice(begin, begin + self._length)
            inputs = nd.array(self._inputs[:, columns], dtype="int32")
            labels = nd.array(self._labels[:, columns], dtype="int32")
            yield Chunk(inputs, labels, begin == 0)

    def __iter__(self) -> Iterator[Chunk]:
        return self.epoch()
