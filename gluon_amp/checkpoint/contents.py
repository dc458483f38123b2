"""The contents of a checkpoint: schema, reading, and the names that link them to a net."""

from typing import Dict, List, NamedTuple

import numpy as np

from gluon_amp.base.messages import first_few
from gluon_amp.casting.binding import binding_of
from gluon_amp.files import archive
from gluon_amp.files.schema import ANYTHING, COUNT, NAME, TEXT, Either, Mapping, Optional, check
from gluon_amp.policy import STRING_KEYS
from gluon_amp.trainer import states

from mxnet import gluon

FILE = archive.Kind(
    "gluon_amp checkpoint",
    1,
    header="gluon_amp_checkpoint.json",
    foreign="was not written by amp.save_checkpoint: use net.load_parameters for MXNet's .params "
    "files, and trainer.load_states for states alone",
)

# A pin, without or with a direction
PIN = Either("a pin", (([NAME], [NAME], NAME), ([NAME], [NAME], NAME, NAME)))

# The header without format and version. `trainer` and `extra` are packed.
SCHEMA = {
    "policies": Mapping(NAME, {"dtypes": [NAME], "pins": [PIN]}),
    "parameters": Mapping(NAME, {"dtype": NAME, "arrays": [NAME]}),
    "trained": [NAME],
    "trainer": ANYTHING,
    "extra": ANYTHING,
    # Of a trainer with an `EMA`, or several: the key of each average by the parameter's name
    "averages": Optional([Mapping(NAME, NAME)]),
}
# As from `states.collect`, with a parameter's name in place of its position.
TRAINER_SCHEMA = {
    **states.SCHEMA,
    "states": Mapping(NAME, ANYTHING),
    "counts": Mapping(NAME, COUNT),
}
del TRAINER_SCHEMA["shapes"]


class Saved(NamedTuple):
    """The contents of a checkpoint, with names of parameters in place of positions."""

    policies: dict  # as from `policies_of`
    parameters: Dict[str, List[np.ndarray]]  # arrays of one shape: one for all devices, or for each
    trained: List[str]  # the names of the trainer's parameters
    trainer: dict  # as from `states.collect`, without masters and shapes
    extra: dict
    averages: List[Dict[str, np.ndarray]]  # of each `EMA`, in float32, or float64 if the values are


def read(path: str) -> Saved:
    """Return the contents of a file, once all of them are checked."""
    header, arrays = archive.read(FILE, path)
    try:
        check(header, SCHEMA, "the header")
        trainer, extra = (archive.unpack(header[part], arrays) for part in ("trainer", "extra"))
        check(trainer, TRAINER_SCHEMA, "the trainer")
        check(extra, Mapping(TEXT, ANYTHING), "extra")
        parameters = {
            name: _arrays_of(name, fields["arrays"], arrays)
            for name, fields in header["parameters"].items()
        }
        trained = header["trained"]
        if len({*trained}) < len(trained) or not parameters.keys() >= {*trained}:
            raise ValueError("the trained parameters are not among the parameters")
        averages = [
            {name: _average_of(name, key, parameters, arrays) for name, key in fields.items()}
            for fields in header.get("averages", [])
        ]
        if not {*trained} >= {*trainer["states"], *trainer["counts"]}:
            raise ValueError("the optimizer has states of parameters that are not trained")
    except ValueError as error:
        raise archive.malformed(path, error) from None
    return Saved(header["policies"], parameters, trained, trainer, extra, averages)


def _arrays_of(name: str, keys: List[str], arrays: archive.Arrays) -> List[np.ndarray]:
    values = [arrays[key] for key in keys if key in arrays]
    if not keys or len(values) < len(keys) or len({(a.shape, a.dtype) for a in values}) > 1:
        raise ValueError(f"the arrays of {name} are missing or different")
    if values[0].size == 0:
        raise ValueError(f"{name} is empty")
    return values


def _average_of(name: str, key: str, parameters, arrays: archive.Arrays) -> np.ndarray:
    if name not in parameters or key not in arrays:
        raise ValueError(f"the average of {name} has no values or no parameter")
    average, value = arrays[key], parameters[name][0]
    dtype = np.float64 if value.dtype == np.float64 else np.float32
    if (average.shape, average.dtype) != (value.shape, dtype):
        raise ValueError(f"the average of {name} has another shape or dtype than its parameter")
    return average


def parameters_of(net: gluon.Block) -> Dict[str, gluon.Parameter]:
    """Return parameters by their path in the net, which unlike their names is always the same."""
    params, seen = {}, set()
    for name, param in net._collect_params_with_prefix().items():
        if id(param) not in seen:  # a shared parameter has several paths
            seen.add(id(param))
            params[name] = param
    return params


def trained_names(params: Dict[str, gluon.Parameter], trainer: gluon.Trainer) -> List[str]:
    """Return the paths of the trainer's parameters, in the trainer's order."""
    names = {id(param): name for name, param in params.items()}
    outside = [param.name for param in trainer.parameters if id(param) not in names]
    if outside:
        raise ValueError(
            f"The trainer updates {first_few(outside)}, which are not in this net: pass a Block "
            "that holds all the parameters of the trainer."
        )
    return [names[id(param)] for param in trainer.parameters]


def policies_of(net: gluon.Block, path: str = "") -> Dict[str, dict]:
    """Return the policies of the outermost cast blocks, by path."""
    binding = binding_of(net)
    if binding:
        policy = binding.policy
        pins = [
            [list(value) if isinstance(value, tuple) else value for value in vars(pin).values()]
            for pin in policy.pins
        ]
        dtypes = [getattr(policy, field) for field in STRING_KEYS.values()]
        if not policy.studies:
            dtypes = dtypes[:3]  # as in files of versions without the others
        return {path: {"dtypes": dtypes, "pins": pins}}
    policies = {}
    for name, child in net._children.items():
        policies.update(policies_of(child, f"{path}.{name}" if path else name))
    return policies
