"""Data sets made ready: downloaded, extracted, split and packed in RecordIO."""
