"""Which devices a run uses."""

from typing import List, Optional, Sequence

from gluon_amp.command_line import UsageError

import mxnet as mx


def contexts(
    gpus: Optional[Sequence[int]] = None,
    num_gpus: Optional[int] = None,
    cpus: Optional[int] = None,
) -> List[mx.Context]:
    """Return the devices to train on.

    Parameters
    ----------
    gpus : sequence of int, optional
        GPUs by number; empty for the CPU.
    num_gpus : int, optional
        The first so many GPUs; 0 for the CPU. With neither: all GPUs, or the CPU if there is none.
    cpus : int, optional
        Instead of GPUs, the CPU as so many devices.

    Raises
    ------
    UsageError
        A GPU that is not there, or the same one twice.
    """
    if cpus:
        return [mx.cpu(number) for number in range(cpus)]
    here = mx.context.num_gpus()
    if gpus is None:
        gpus = range(here if num_gpus is None else num_gpus)
    if len(set(gpus)) < len(gpus):
        raise UsageError(f"--gpus {','.join(map(str, gpus))} names a GPU twice.")
    for number in gpus:
        if number >= here:
            raise UsageError(
                f"GPU {number} was asked for, but MXNet sees {here or 'no'} "
                f"GPU{'s' if here > 1 else ''} here: leave out --gpus and --num-gpus"
                f"{' to use what there is' if here else ' to train on the CPU'}."
            )
    return [mx.gpu(number) for number in gpus] or [mx.cpu()]


def is_emulated(dtype: str, devices: Sequence[mx.Context]) -> bool:
    """Whether a dtype is emulated: float16 is on a CPU, with a GPU's values but not its speed."""
    return dtype == "float16" and any(device.device_type == "cpu" for device in devices)
