"""The state of a training step between its first backward pass and its update, as one value."""

from dataclasses import dataclass, field, replace
from typing import Iterable, List, Mapping, Optional, Tuple

from gluon_amp.base.writes import version
from gluon_amp.trainer import snapshot

from mxnet.ndarray import NDArray


@dataclass(frozen=True)
class Window:
    """The effect of all backward passes since the last step; frozen, and replaced whole.

    Attributes
    ----------
    shared_backwards : int
        The number of backward passes that had used the loss scale when the window began. If it is
        higher by now and `scale` is None, another trainer that shares the scale ran them.
    scale : float or None
        The loss scale in the gradients; None before the first scaled backward pass.
    passes : tuple of Pass
        What these passes wrote to running statistics; a skip undoes it.
    losses : tuple of NDArray
        The losses of the last pass.
    fitting : float or None
        The largest scale at which each pass fits, found by replays while the loss scale is
        searching; 0 if there is none, and None if no pass was replayed or finite.
    fresh : dict of int to NDArray
        Weights, by their `id`, whose gradients were fresh when they were reduced, measured or
        unscaled. MXNet's own marks are cleared then. So a mark that is set now comes from a later
        backward pass.
    reduced : bool
        Whether the gradients are reduced over devices and workers.
    predivided : float
        The divisor of the gradients before they were reduced, a power of two.
    unscaled : bool
        Whether the gradients were divided by the scale in place.
    clip_factor : float
        The factor of the gradients in the update.
    grad_norm : float or None
        The result of `clip_global_norm`.
    finite : dict of int to int or None
        The versions of gradients, by their `id`, that `clip_global_norm` found to be finite.
    """

    shared_backwards: int = 0
    scale: Optional[float] = None
    passes: Tuple[snapshot.Pass, ...] = ()
    losses: Tuple[NDArray, ...] = ()
    fitting: Optional[float] = None
    fresh: Mapping[int, NDArray] = field(default_factory=dict)
    reduced: bool = False
    predivided: float = 1.0
    unscaled: bool = False
    clip_factor: float = 1.0
    grad_norm: Optional[float] = None
    finite: Mapping[int, Optional[int]] = field(default_factory=dict)

    def with_pass(self, written: snapshot.Pass) -> "Window":
        """Return the window with one more pass."""
        return replace(self, passes=snapshot.followed_by(self.passes, written))

    def with_fitting(self, scale: Optional[float]) -> "Window":
        """Return the window with the largest scale at which one more pass fits, if it is known."""
        known = [one for one in (self.fitting, scale) if one is not None]
        return replace(self, fitting=min(known, default=None))

    def with_new_gradients(self) -> "Window":
        """Return the window without the fields that hold for overwritten gradients only."""
        return replace(
            self,
            fresh={},
            reduced=False,
            predivided=1.0,
            unscaled=False,
            clip_factor=1.0,
            grad_norm=None,
            finite={},
        )

    def still_finite(self, gradients: Iterable[NDArray]) -> bool:
        """Return whether gradients are known to be finite, without a look at their elements."""
        versions = [(version(grad), self.finite.get(id(grad))) for grad in gradients]
        return bool(versions) and all(now is not None and now == then for now, then in versions)

    def is_fresh(self, weight: NDArray) -> bool:
        """Return whether a backward pass has written the weight's gradient since the last step."""
        return weight._fresh_grad or id(weight) in self.fresh


def mark_fresh(weights: Iterable[NDArray]) -> None:
    """Set the marks by which MXNet knows that a backward pass wrote these weights' gradients."""
    for weight in weights:
        weight._fresh_grad = True


def clear_fresh(weights: Iterable[NDArray]) -> List[NDArray]:
    """Clear these marks, and return the weights that had one."""
    marked = [weight for weight in weights if weight._fresh_grad]
    for weight in marked:
        weight._fresh_grad = False
    return marked
