"""Idx files for tests, written byte by byte as the format says."""

import gzip
import struct

import numpy as np


def idx(values):
    """Return the bytes of an idx file of unsigned bytes."""
    values = np.asarray(values, np.uint8)
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def write_fashion(folder, train=40, val=20, seed=0, compressed=True):
    """Write the four files of Fashion-MNIST with random images; label n is ``n % 10``."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    for part, count in (("train", train), ("t10k", val)):
        images = generator.integers(0, 256, (count, 28, 28))
        contents = {"images-idx3": images, "labels-idx1": np.arange(count) % 10}
        for content, values in contents.items():
            path = folder / f"{part}-{content}-ubyte{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(idx(values)) if compressed else idx(values))
    return folder
