"""Data sets for training: images and text, in batches that depend on a seed and an epoch alone.

`open_...` return a `Source`, which has a training and a validation set. The module `text` has text
as characters; the package `prepare` downloads, splits and packs images.
"""

from gluon_amp.training.data.digits import open_digits
from gluon_amp.training.data.fashion_mnist import open_fashion_mnist
from gluon_amp.training.data.folders import open_folders, open_image_folder
from gluon_amp.training.data.imagenet_transforms import Preprocessing
from gluon_amp.training.data.loader import TrainingBatches, ValidationBatches
from gluon_amp.training.data.records import RecordFiles, open_records
from gluon_amp.training.data.source import DataError, Source, describe_unreadable
from gluon_amp.training.data.synthetic import open_synthetic

__all__ = [
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
]
