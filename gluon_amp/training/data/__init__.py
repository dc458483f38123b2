"""Data sets for training: images and text, in batches that depend on a seed and an epoch alone.

`open_...` return a `Source`, which has a training and a validation set. The module `text` has text
as characters; the package `prepare` downloads, splits and packs images.
"""

from pathlib import Path
from typing import Callable, Dict, NamedTuple, Optional

from gluon_amp.training.data import digits, fashion_mnist, teacher
from gluon_amp.training.data.digits import open_digits
from gluon_amp.training.data.fashion_mnist import open_fashion_mnist
from gluon_amp.training.data.folders import open_folders, open_image_folder
from gluon_amp.training.data.imagenet_transforms import Preprocessing
from gluon_amp.training.data.loader import TrainingBatches, ValidationBatches
from gluon_amp.training.data.records import RecordFiles, open_records
from gluon_amp.training.data.source import DataError, Source, describe_unreadable
from gluon_amp.training.data.synthetic import open_synthetic
from gluon_amp.training.data.teacher import open_taught

__all__ = [
    "SMALL",
    "DataError",
    "Preprocessing",
    "RecordFiles",
    "Source",
    "TrainingBatches",
    "ValidationBatches",
    "describe_unreadable",
    "open_digits",
    "open_fashion_mnist",
    "open_folders",
    "open_image_folder",
    "open_records",
    "open_synthetic",
    "open_taught",
]


class SmallSet(NamedTuple):
    """A data set that comes whole. Networks that need larger images enlarge them."""

    open: Callable[..., Source]  # from its folder, with a seed, an image size and a largest shift
    side: int  # height and width of its images
    folder: Optional[Path] = None  # where its files are by default, if it has any


# By its name on a command line; `runs.defaults.DATA_DEFAULTS` may have a recipe for it.
SMALL: Dict[str, SmallSet] = {
    "digits": SmallSet(lambda _, seed, size, __: open_digits(seed, size=size), digits.SIZE),
    "fashion-mnist": SmallSet(open_fashion_mnist, fashion_mnist.SIZE, fashion_mnist.FOLDER),
    "teacher": SmallSet(lambda _, seed, size, __: open_taught(seed, size), teacher.SIZE),
}
