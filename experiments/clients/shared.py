"""What the programs share: the seed, the number of steps, and the losses that they print."""

import itertools
import json
import os
import random
import time
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import numpy as np

SEED, STEPS, CASE = int(os.environ["SEED"]), int(os.environ["STEPS"]), os.environ["CASE"]
losses: List[float] = []
seconds: List[float] = []  # of each step
ends = [time.perf_counter()]  # of steps that a callback ends


def seed_all() -> None:
    """Seed the random numbers of Python, numpy and MXNet."""
    import mxnet as mx  # not above, as the edited programs import gluon_amp before MXNet

    random.seed(SEED)
    np.random.seed(SEED)
    mx.random.seed(SEED)


def batches(data: Iterable[Any]) -> Iterator[Any]:
    """Yield a batch for each step, and measure what the program does with it.

    Data that end begin again.
    """
    endless = itertools.chain.from_iterable(itertools.repeat(data))
    for batch in itertools.islice(endless, STEPS):
        start = time.perf_counter()
        yield batch
        seconds.append(time.perf_counter() - start)


def step_ended() -> None:
    """Measure a step that ends here, for programs whose loop is that of a library."""
    ends.append(time.perf_counter())
    seconds.append(ends[-1] - ends[-2])


def report(extra: Optional[Dict[str, float]] = None) -> None:
    """Print the results."""
    result = {"losses": [float(loss) for loss in losses], "extra": extra or {}}
    print(json.dumps({**result, "step_seconds": np.median(seconds[3:])}))


def image_of_a_box(pixels: int, smallest: int, end: int) -> Tuple[Any, np.ndarray]:
    """Return an image of noise with a bright square or bar, and its label: a box and a class."""
    import mxnet as mx

    image = np.random.randint(0, 100, (pixels, pixels, 3))
    kind = np.random.randint(2)
    size = np.random.randint(smallest, end)
    width, height = (size, size) if kind == 0 else (size, size // 2)
    x, y = np.random.randint(0, pixels - width), np.random.randint(0, pixels - height)
    image[y : y + height, x : x + width] += 150
    return mx.nd.array(image, dtype="uint8"), np.array([[x, y, x + width, y + height, kind]])
