"""The parts of `scripts/benchmark.py`."""
