"""Prepares data sets: downloads, extracts, splits them and packs them in RecordIO."""
