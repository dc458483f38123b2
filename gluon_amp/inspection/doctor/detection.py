"""What this machine has: GPUs and their driver, CPU, compiler, and which MXNet is installed.

`read_machine` only reads. The conclusions are in `advice`, which tests call with other machines.
"""

import ctypes
import platform
from typing import FrozenSet, List, NamedTuple, Optional, Tuple

import numpy as np

from gluon_amp import kernels
from gluon_amp.base import bfloat16, hardware
from gluon_amp.base.startup.cuda_libraries import DRIVER, installed_wheels
from gluon_amp.kernels import build

import mxnet as mx

_CAPABILITY = 75, 76  # CUdevice_attribute of cuda.h: major and minor


class Gpu(NamedTuple):
    """An NVIDIA GPU: its name, and its compute capability as (major, minor)."""

    name: str
    capability: Tuple[int, int]

    @property
    def version(self) -> str:
        """The capability as text."""
        return "{}.{}".format(*self.capability)


class Driver(NamedTuple):
    """What the NVIDIA driver reports."""

    found: bool  # whether the driver's library can be loaded
    gpus: List[Gpu]  # in the driver's order, as CUDA_VISIBLE_DEVICES selects them


class Machine(NamedTuple):
    """All facts of the report except the environment variables."""

    python: str
    numpy: str
    mxnet: str
    system: str
    wheels: List[str]
    cuda_build: bool
    driver: Driver
    cpu_name: str
    cores: int  # that this process may use; 0 if unknown
    all_cores: int
    load: Optional[float]  # of the last minute
    cpu_flags: FrozenSet[str]  # that oneDNN may use
    all_cpu_flags: FrozenSet[str]
    cpu_bfloat16: bool  # whether bfloat16 is native there
    compiler: Optional[str]
    native: bool  # whether the C++ kernels are in use
    prebuilt: bool  # whether they are those of a wheel


def read_machine() -> Machine:
    """Read what this machine has; the first call may build the C++ kernels (seconds)."""
    load = hardware.load_average()  # before the kernels are built, which raises it
    kernels.prepare([mx.cpu()])
    compiler = build.compiler()
    return Machine(
        python=platform.python_version(),
        numpy=np.__version__,
        mxnet=mx.__version__,
        system=f"{platform.system()} {platform.machine()}",
        wheels=installed_wheels(),
        cuda_build=mx.runtime.Features().is_enabled("CUDA"),
        driver=read_driver(),
        cpu_name=hardware.cpu_name(),
        cores=hardware.count_cores(),
        all_cores=hardware.count_all_cores(),
        load=load,
        cpu_flags=hardware.onednn_flags(),
        all_cpu_flags=hardware.cpu_flags(),
        cpu_bfloat16=bfloat16.is_native(kernels.available()),
        compiler=" ".join(compiler) if compiler else None,
        native=kernels.available(),
        prebuilt=bool(getattr(kernels.library(), "prebuilt", False)),
    )


def read_driver() -> Driver:
    """Return the GPUs that the driver's library lists; without it no program can use a GPU."""
    try:
        library = ctypes.CDLL(DRIVER)
    except OSError:
        return Driver(False, [])
    count, gpus = ctypes.c_int(0), []
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
        return Driver(True, [])  # CUDA returns an error if the machine has the driver and no GPU
    for number in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        library.cuDeviceGet(ctypes.byref(device), number)
        library.cuDeviceGetName(name, len(name), device)
        capability = ctypes.c_int(), ctypes.c_int()
        for value, attribute in zip(capability, _CAPABILITY):
            library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        major, minor = (value.value for value in capability)
        gpus.append(Gpu(name.value.decode(errors="replace"), (major, minor)))
    return Driver(True, gpus)
