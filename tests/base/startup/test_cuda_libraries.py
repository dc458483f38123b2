"""The CUDA 11 libraries are found in NVIDIA's packages; an error names what is missing.

The tests use fake wheels and libraries: a `.dist-info` folder and small C libraries.
"""

import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from experiments import pins
from gluon_amp.base.startup import cuda_libraries
from gluon_amp.base.startup.cuda_libraries import CUDA_WHEELS, LIBRARIES

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
HAS_DRIVER = ctypes.util.find_library("cuda") is not None

# what `import gluon_amp` does first, without MXNet after it
PRELOAD = f"""
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("cuda_libraries", {cuda_libraries.__file__!r})
cuda_libraries = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cuda_libraries)
cuda_libraries.preload()
maps = open("/proc/self/maps").read()
print(json.dumps([one.soname for one in cuda_libraries.LIBRARIES if "/" + one.soname in maps]))
"""


def install(folder, *wheels):
    for wheel in wheels:
        info = folder / f"{wheel.replace('-', '_')}-1.9.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {wheel}\nVersion: 1.9.1\n")


def build(path):
    """A shared library under a soname, with one function that bears its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = f"int {symbol(path.name)}(void) {{ return 11; }}"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{path.name}", "-o", path]
    subprocess.run([str(part) for part in command], check=True, input=source, text=True)


def symbol(soname):
    return "in_" + soname.partition(".")[0]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """NVIDIA's packages, with libraries that do nothing."""
    folder = tmp_path_factory.mktemp("packages")
    for library in LIBRARIES:
        build(folder / "nvidia" / library.folder / "lib" / library.soname)
    return folder


def run(*folders, code=PRELOAD, **environment):
    """Run code without this environment's packages, but with those in `folders`."""
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), **environment},
        capture_output=True,
        text=True,
    )


def sentence(done):
    """The message of the ImportError that ended a run."""
    assert done.returncode == 1, done
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: "), done.stderr
    return last[len("ImportError: ") :]


def driver_missing(wheel):
    return (
        f"{wheel} needs NVIDIA's driver, which this machine does not have (libcuda.so.1 is not "
        f"found): install the driver, or run `pip uninstall {wheel}`, then "
        "`pip install 'gluon-amp[cpu]'` for a machine without a GPU."
    )


def test_nothing_is_loaded_for_the_cpu_wheel(tmp_path, packages):
    install(tmp_path, "mxnet")
    done = run(tmp_path, packages)
    assert done.returncode == 0 and done.stdout == "[]\n", done.stderr


def test_two_wheels_are_refused(tmp_path):
    install(tmp_path, "mxnet", "mxnet-cu117")
    assert sentence(run(tmp_path)) == (
        "mxnet and mxnet-cu117 are both installed and have overwritten each other's files: "
        "run `pip uninstall mxnet mxnet-cu117`, then `pip install 'gluon-amp[cu117]'` (or "
        "`'gluon-amp[cpu]'` for a machine without a GPU)."
    )


def test_a_missing_library_is_named(tmp_path):
    install(tmp_path, "mxnet-cu112")
    if run(tmp_path, code="import ctypes; ctypes.CDLL('libcudart.so.11.0')").returncode == 0:
        pytest.skip("this machine has CUDA 11")
    assert sentence(run(tmp_path)) == (
        "mxnet-cu112 needs libcudart.so.11.0, which could not be loaded (libcudart.so.11.0: cannot "
        "open shared object file: No such file or directory): run `pip install "
        "'gluon-amp[cu112]'`, which brings it."
    )


@needs_cc
@pytest.mark.parametrize("wheel", CUDA_WHEELS)
def test_with_a_driver_all_of_them_are_loaded(tmp_path, packages, wheel):
    install(tmp_path, wheel)
    if not HAS_DRIVER:
        assert sentence(run(tmp_path, packages)) == driver_missing(wheel)
    build(tmp_path / "libcuda.so.1")
    # global, as if MXNet were linked with them
    expected = [one.soname for one in LIBRARIES if wheel in one.wheels]
    names = [symbol(soname) for soname in (*expected, "libcuda.so.1")]
    look = f"\nimport ctypes; print(sum(getattr(ctypes.CDLL(None), n)() for n in {names}))"
    done = run(tmp_path, packages, code=PRELOAD + look, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    loaded, total = done.stdout.splitlines()
    assert json.loads(loaded) == expected and total == str(11 * len(names))
    assert ("libcusparse.so.11" in expected) is (wheel == "mxnet-cu117")


def test_every_library_has_its_package_in_setup_py():
    extras = pins.metadata()["extras_require"]
    for wheel in CUDA_WHEELS:
        required = "\n".join(extras[wheel.partition("-")[2]])
        packages = re.findall(r"(?m)^nvidia-(.*)-cu11==", required)
        folders = {library.folder for library in LIBRARIES if wheel in library.wheels}
        assert folders == {name.replace("-", "_") for name in packages}
