"""The state of a training step between its first backward pass and its update, as one value."""

from dataclasses import dataclass, field, replace
from typing import Mapping, Optional, Tuple

from gluon_amp.trainer.snapshot import Pass

from mxnet.ndarray import NDArray


@dataclass(frozen=True)
class Window:
    """What the backward passes since the last step left; frozen, and replaced whole.

    Attributes
    ----------
    shared_backwards : int
        How many backward passes had used the loss scale when the window began. More by now, with
        `scale` None, are those of another trainer that shares the scale.
    scale : float or None
        The loss scale in the gradients; None before the first scaled backward pass.
    passes : tuple
        What these passes wrote to running statistics, for `snapshot.undo`.
    losses : tuple of NDArray
        The losses of the last pass, kept only where an overflow would raise.
    fresh : dict of int to NDArray
        Weights, by their `id`, whose gradients were fresh when these were reduced, measured or
        unscaled. Their own mark is cleared meanwhile, so a mark that is set comes from a later
        backward pass.
    reduced : bool
        The gradients are reduced over devices and workers.
    unscaled : bool
        The gradients were divided by the scale in place.
    clip_factor : float
        The update multiplies the gradients by it.
    grad_norm : float or None
        What `clip_global_norm` measured.
    """

    shared_backwards: int = 0
    scale: Optional[float] = None
    passes: Tuple[Pass, ...] = ()
    losses: Tuple[NDArray, ...] = ()
    fresh: Mapping[int, NDArray] = field(default_factory=dict)
    reduced: bool = False
    unscaled: bool = False
    clip_factor: float = 1.0
    grad_norm: Optional[float] = None

    def with_new_gradients(self) -> "Window":
        """Return the window without what was derived from gradients that are overwritten now."""
        return replace(
            self, fresh={}, reduced=False, unscaled=False, clip_factor=1.0, grad_norm=None
        )

    def is_fresh(self, weight: NDArray) -> bool:
        """Return whether a backward pass has written the weight's gradient since the last step."""
        return weight._fresh_grad or id(weight) in self.fresh
