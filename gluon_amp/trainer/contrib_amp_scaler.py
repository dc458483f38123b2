"""The attributes that `mxnet.contrib.amp` adds to a trainer, as views of its loss scale.

Code written for contrib.amp reads, saves and sets them. Sockeye 2.3 sets
`_amp_loss_scaler._scale_seq_len` once, and keeps three other fields with each checkpoint
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
    """A `LossScale` with the attributes of contrib.amp's `LossScaler`; it can be pickled.

    They read and set the loss scale's own state. A scale that does not grow ignores what only
    controls growth. contrib.amp keeps the scale of the last step beside that of the next one; here
    both are the next one.

    Raises
    ------
    ValueError
        When an attribute is set to a value that the loss scale cannot have.
    """

    def __init__(self, scale: LossScale):
        vars(self)["_scale"] = scale

    @property
    def loss_scale(self) -> float:
        """The scale of the next backward pass."""
        return self._scale.scale

    def assign(self, **values) -> None:
        """Set several attributes at once, or none of them."""
        fields = {_FIELDS[name][0]: value for name, value in values.items()}
        state = self._scale.state_dict()
        if "scale" not in state and fields.get("scale", 1) != 1:
            raise ValueError(
                f"This trainer has no loss scale to set to {fields['scale']!r}: build it with "
                "loss_scale='dynamic'."
            )
        if "scale" in fields:
            fields["searching"] = False
        known = {field: value for field, value in fields.items() if field in state}
        self._scale.load_state_dict({**state, **known})

    def __getattr__(self, name: str):
        if name in _FIELDS and "_scale" in vars(self):
            field, default = _FIELDS[name]
            return getattr(self._scale, field, default)
        if name == "has_overflow":
            raise AttributeError(
                "trainer.step() checks for overflow itself, and its report says whether the step "
                "was applied: leave out has_overflow()."
            )
        raise AttributeError(f"A LossScaler of contrib.amp has no {name!r}.")

    def __setattr__(self, name: str, value) -> None:
        if name not in _FIELDS:
            raise AttributeError(
                f"{name!r} of a loss scale cannot be set: set one of {', '.join(_FIELDS)}."
            )
        self.assign(**{name: value})

    def __reduce__(self):
        return _rebuild, (type(self._scale), self._scale.state_dict())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._scale!r})"


def _rebuild(kind: type, state: dict) -> ContribAmpScaler:
    scale = kind.__new__(kind)
    vars(scale).update(state)
    return ContribAmpScaler(scale)


class ContribAmpAttributes:
    """The attributes that contrib.amp's `init_trainer` adds to a trainer."""

    loss_scale: LossScale
    rescale: float
    _updating = False

    @property
    def _amp_loss_scaler(self):
        return None if self._updating else ContribAmpScaler(self.loss_scale)

    @_amp_loss_scaler.setter
    def _amp_loss_scaler(self, scaler) -> None:
        names = [name for name in _FIELDS if name != "_loss_scale"]
        if not all(hasattr(scaler, name) for name in names):
            raise TypeError(
                "_amp_loss_scaler expects a LossScaler, such as one that was saved from a trainer: "
                f"received {scaler!r}."
            )
        self._amp_loss_scaler.assign(**{name: getattr(scaler, name) for name in names})

    @property
    def _amp_original_scale(self) -> float:
        return self.rescale

    def _update(self, ignore_stale_grad=False):
        # gluon.Trainer checks for overflow here once more if the trainer has an _amp_loss_scaler.
        self._updating = True
        try:
            super()._update(ignore_stale_grad)
        finally:
            self._updating = False
