"""Accuracy and mean loss, computed without waiting for the device at every batch."""

from typing import List

from mxnet import nd
from mxnet.ndarray import NDArray


class TopK:
    """Counts images whose label is among the k largest outputs.

    Counts stay on the device until they are read, so that training does not wait for them. They are
    integers, so the share is exact for every batch size.
    """

    def __init__(self, k: int = 1, images: int = 0, right: int = 0):
        self.k = k
        self.images = images
        self._right = right
        self._pending: List[NDArray] = []

    def update(self, labels: NDArray, outputs: NDArray) -> None:
        """Count a batch: `labels` (N,), `outputs` (N, classes) on the same device."""
        best = nd.topk(outputs, k=min(self.k, outputs.shape[1]), dtype="int32")
        self._pending.append((best == labels.astype("int32").expand_dims(1)).sum())
        self.images += len(labels)

    @property
    def right(self) -> int:
        """The number of right answers; waits for the device."""
        self._right += sum(int(count.asscalar()) for count in self._pending)
        self._pending.clear()
        return self._right

    @property
    def share(self) -> float:
        """The share of right answers, from 0 to 1; NaN before the first image."""
        return self.right / self.images if self.images else float("nan")


class Mean:
    """The mean of values that the device may still be computing, one array for each batch."""

    def __init__(self, images: int = 0, total: float = 0.0):
        self.images = images
        self._sum = total
        self._pending: List[NDArray] = []

    def update(self, values: NDArray) -> None:
        """Add the values (N,) of a batch."""
        self._pending.append(values.sum())
        self.images += values.size

    @property
    def sum(self) -> float:
        """The sum; waits for the device."""
        for part in self._pending:  # in order, so that reading in between changes no bit
            self._sum += float(part.asscalar())
        self._pending.clear()
        return self._sum

    @property
    def value(self) -> float:
        """The mean; waits for the device. NaN before the first value."""
        return self.sum / self.images if self.images else float("nan")
