"""Data sets: scikit-learn's digits, ImageNet as folders, images packed in RecordIO."""

from gluon_amp.data.digits import digits
from gluon_amp.data.folders import folders
from gluon_amp.data.loader import TrainingBatches, validation_batches
from gluon_amp.data.records import RecordFiles, records
from gluon_amp.data.source import DataError, Source

__all__ = [
    "DataError",
    "RecordFiles",
    "Source",
    "TrainingBatches",
    "digits",
    "folders",
    "records",
    "validation_batches",
]
