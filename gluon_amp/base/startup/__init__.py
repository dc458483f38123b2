"""The import of MXNet, and what it needs before and after it to work on this machine."""

from gluon_amp.base.startup import compat, cpu, cuda_libraries, supported


def import_mxnet() -> None:
    """Import MXNet with its CUDA libraries, numpy's old names and fast settings for a CPU.

    An `ImportError` is one sentence: the system or the MXNet that cannot be used, the package to
    install, the system libraries that are missing, or the environment variable that MXNet cannot
    read.
    """
    supported.check()
    cpu.check_variables()
    cuda_libraries.preload()
    compat.restore()
    cpu.keep_freed_memory()
    with cpu.one_thread_per_core():
        _import_mxnet()
    compat.mend()
    cpu.configure()


def _import_mxnet() -> None:
    try:
        import mxnet  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name == "mxnet":
            raise ImportError(supported.MISSING) from None
        if error.name and error.name.split(".")[0] == "distutils":
            raise ImportError(
                "MXNet 1.9.1 needs distutils, which Python 3.12 dropped: "
                "run `pip install setuptools`."
            ) from None
        raise
    except OSError as error:
        raise ImportError(supported.cannot_load(error)) from None
