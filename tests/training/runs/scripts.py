"""Processes of this checkout, and what tests wait for in them."""

import os
import time

from tests import ROOT

# The fields of a summary that depend on the clock or on the machine's memory
OF_THE_CLOCK = set("seconds train_seconds images_per_second waited_share peak_mebibytes".split())


def environment(**changes):
    """Return the variables of a process that imports this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
