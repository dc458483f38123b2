"""Translations of operators of detectors."""

from typing import Callable, Dict

TRANSLATIONS: Dict[str, Callable] = {}
