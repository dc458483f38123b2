"""`trainer._amp_loss_scaler` of `mxnet.contrib.amp`, as a view of the loss scale.

Sockeye 2.3 sets `_scale_seq_len` once, and keeps three other fields with each checkpoint
(sockeye/training.py, `_save_training_state`).
"""

from gluon_amp.trainer.loss_scale import LossScale

# fields of contrib.amp's LossScaler: ours, and what a scale without this field shows
_FIELDS = {
    "_loss_scale": ("scale", 1.0),
    "_next_loss_scale": ("scale", 1.0),
    "_unskipped": ("finite_steps", 0),
    "_scale_seq_len": ("growth_interval", 2000),
    "_max_loss_scale": ("max_scale", 2.0**24),
}


class ContribAmpScaler:
    """A loss scale with the fields of contrib.amp's `LossScaler`, which read and set its state.

    A scale that does not grow ignores what only controls growth. contrib.amp keeps the scale of the
    last step beside that of the next one; here both are the next one.
    """

    _scale: LossScale

    def __init__(self, scale: LossScale):
        vars(self)["_scale"] = scale

    @property
    def loss_scale(self) -> float:
        """The scale of the next backward pass."""
        return self._scale.scale

    def has_overflow(self, params: object) -> bool:
        """Return False: `gluon.Trainer` asks before an update, which comes after our own check."""
        return False

    def __getattr__(self, name: str) -> float:
        if name not in _FIELDS:
            raise AttributeError(f"A LossScaler of contrib.amp has no {name!r}.")
        field, default = _FIELDS[name]
        return getattr(self._scale, field, default)

    def __setattr__(self, name: str, value: float) -> None:
        if name not in _FIELDS:
            raise AttributeError(
                f"{name!r} of a loss scale cannot be set: set one of {', '.join(_FIELDS)}."
            )
        field, state = _FIELDS[name][0], self._scale.state_dict()
        if field in state:
            # A scale that was set is not searched for.
            found = {"searching": False} if field == "scale" and "searching" in state else {}
            self._scale.load_state_dict({**state, **found, field: value})
        elif field == "scale" and value != 1:
            raise ValueError(
                f"This trainer has no loss scale to set to {value!r}: build it with "
                "loss_scale='dynamic'."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._scale!r})"
