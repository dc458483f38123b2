"""Data sets: scikit-learn's digits, ImageNet as folders, images packed in RecordIO, synthetic."""

from gluon_amp.data.classes import read_classes, write_classes
from gluon_amp.data.digits import open_digits
from gluon_amp.data.folders import open_folders
from gluon_amp.data.imagenet_transforms import Look
from gluon_amp.data.loader import TrainingBatches, validation_batches
from gluon_amp.data.records import RecordFiles, open_records
from gluon_amp.data.source import DataError, Source, unreadable_in_words
from gluon_amp.data.synthetic import open_synthetic

__all__ = [
    "DataError",
    "Look",
    "RecordFiles",
    "Source",
    "TrainingBatches",
    "open_digits",
    "open_folders",
    "open_records",
    "open_synthetic",
    "read_classes",
    "unreadable_in_words",
    "validation_batches",
    "write_classes",
]
