"""The CUDA 11 libraries are found in NVIDIA's packages; an error names what is missing.

The tests use fake wheels and libraries: a `.dist-info` folder and small C libraries. With
GLUON_AMP_TEST_CUDA_WHEELS=1 they also install the real ones (2.4 GB to download and 4 GB of disk
for mxnet-cu117, a minute each), which is not for continuous integration.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import venv

import pytest

from gluon_amp.base.startup import cuda_libraries
from gluon_amp.base.startup.cuda_libraries import CUDA_WHEELS, LIBRARIES, Library
from tests import ROOT

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
needs_no_driver = pytest.mark.skipif(
    subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"], capture_output=True
    ).returncode
    == 0,
    reason="this machine has NVIDIA's driver",
)
needs_wheels = pytest.mark.skipif(
    os.environ.get("GLUON_AMP_TEST_CUDA_WHEELS") != "1", reason="downloads gigabytes"
)

# what `import gluon_amp` does first, without MXNet after it
PRELOAD = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("cuda_libraries", {module!r})
cuda_libraries = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cuda_libraries)
cuda_libraries.preload()
maps = open("/proc/self/maps").read()
print(json.dumps([one.soname for one in cuda_libraries.LIBRARIES if "/" + one.soname in maps]))
""".format(module=str(ROOT / "gluon_amp" / "startup" / "cuda_libraries.py"))


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


@pytest.mark.parametrize("wheels", [(), ("mxnet",)])
def test_nothing_is_loaded_for_the_cpu_wheel(tmp_path, packages, wheels):
    install(tmp_path, *wheels)
    done = run(tmp_path, packages)
    assert done.returncode == 0 and done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    "wheels, sentence_",
    [
        (
            ("mxnet", "mxnet-cu117"),
            "mxnet and mxnet-cu117 are both installed and have overwritten each other's files: "
            "run `pip uninstall mxnet mxnet-cu117`, then `pip install 'gluon-amp[cu117]'` (or "
            "`'gluon-amp[cpu]'` for a machine without a GPU).",
        ),
        (
            ("mxnet-cu112", "mxnet-cu117"),
            "mxnet-cu112 and mxnet-cu117 are both installed and have overwritten each other's "
            "files: run `pip uninstall mxnet-cu112 mxnet-cu117`, then `pip install "
            "'gluon-amp[cu117]'` (or `'gluon-amp[cpu]'` for a machine without a GPU).",
        ),
    ],
)
def test_two_wheels_are_refused(tmp_path, wheels, sentence_):
    install(tmp_path, *wheels)
    assert sentence(run(tmp_path)) == sentence_


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
@needs_no_driver
@pytest.mark.parametrize("wheel", CUDA_WHEELS)
def test_with_all_libraries_only_the_driver_is_missing(tmp_path, packages, wheel):
    install(tmp_path, wheel)
    assert sentence(run(tmp_path, packages)) == driver_missing(wheel)


@needs_cc
@pytest.mark.parametrize("wheel", CUDA_WHEELS)
def test_with_a_driver_all_of_them_are_loaded(tmp_path, packages, wheel):
    install(tmp_path, wheel)
    build(tmp_path / "libcuda.so.1")
    done = run(tmp_path, packages, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert loaded == [one.soname for one in LIBRARIES if wheel in one.wheels]
    assert ("libcusparse.so.11" in loaded) is (wheel == "mxnet-cu117")


@needs_cc
def test_only_cu117_misses_cusparse(tmp_path, packages):
    build(tmp_path / "driver" / "libcuda.so.1")
    driver = str(tmp_path / "driver")
    shutil.copytree(packages / "nvidia", tmp_path / "some" / "nvidia")
    shutil.rmtree(tmp_path / "some" / "nvidia" / "cusparse")
    install(tmp_path / "cu112", "mxnet-cu112")
    done = run(tmp_path / "cu112", tmp_path / "some", LD_LIBRARY_PATH=driver)
    assert done.returncode == 0, done.stderr
    install(tmp_path / "cu117", "mxnet-cu117")
    if run(tmp_path, code="import ctypes; ctypes.CDLL('libcusparse.so.11')").returncode:
        message = sentence(run(tmp_path / "cu117", tmp_path / "some", LD_LIBRARY_PATH=driver))
        assert message.startswith(
            "mxnet-cu117 needs libcusparse.so.11, which could not be loaded ("
        )


@needs_cc
def test_libraries_of_the_system_are_used_too(tmp_path, packages):
    install(tmp_path, "mxnet-cu112")
    everything = tmp_path / "system"
    for library in LIBRARIES:
        build(everything / library.soname)
    build(everything / "libcuda.so.1")
    done = run(tmp_path, LD_LIBRARY_PATH=str(everything))
    assert done.returncode == 0, done.stderr


@needs_cc
def test_later_libraries_find_the_loaded_ones(tmp_path, packages):
    """A library in any folder that needs all of them can be loaded, as libmxnet.so can."""
    install(tmp_path, "mxnet-cu117")
    build(tmp_path / "libcuda.so.1")
    later = tmp_path / "later.so"
    needed = [packages / "nvidia" / one.folder / "lib" / one.soname for one in LIBRARIES]
    (tmp_path / "empty.c").touch()
    command = ["cc", "-shared", str(tmp_path / "empty.c"), "-Wl,--no-as-needed"]
    subprocess.run([*command, *map(str, needed), "-o", str(later)], check=True)
    load = f"\nimport ctypes; ctypes.CDLL({str(later)!r})"
    options = {"LD_LIBRARY_PATH": str(tmp_path)}
    assert run(code="import ctypes" + load, **options).returncode == 1
    assert run(tmp_path, packages, code=PRELOAD + load, **options).returncode == 0


@needs_cc
def test_symbols_are_global_as_if_mxnet_were_linked_with_them(tmp_path, packages):
    install(tmp_path, "mxnet-cu117")
    build(tmp_path / "libcuda.so.1")
    names = [symbol(one.soname) for one in (*LIBRARIES, Library("", "libcuda.so.1"))]
    look = f"\nimport ctypes; print([getattr(ctypes.CDLL(None), n)() for n in {names}])"
    done = run(tmp_path, packages, code=PRELOAD + look, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str([11] * 12)


def test_the_wheel_of_this_environment_is_found():
    wheels = cuda_libraries.installed_wheels()
    assert len(wheels) == 1 and wheels[0] in cuda_libraries.WHEELS


def test_every_library_has_its_package_in_setup_py():
    requirements = {}
    source = (ROOT / "setup.py").read_text().replace("find_packages, setup", "find_packages")
    exec(
        compile(source, "setup.py", "exec"),
        {"setup": requirements.update, "__file__": str(ROOT / "setup.py")},
    )
    for wheel in CUDA_WHEELS:
        extra = requirements["extras_require"][wheel.partition("-")[2]]
        packages = {re.sub("^nvidia-(.*)-cu11==.*$", r"\1", r).replace("-", "_") for r in extra}
        folders = {library.folder for library in LIBRARIES if wheel in library.wheels}
        assert folders == {name for name in packages if not name.startswith("mxnet")}


# ------------------------------------------------------------------------- the real wheels


@needs_wheels
@needs_no_driver
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extra", ["cu112", "cu117"])
def test_the_real_wheels_need_nothing_but_a_driver(tmp_path, extra):
    """Installs the extra's packages and numpy; takes minutes and gigabytes."""
    arguments = {}
    source = (ROOT / "setup.py").read_text().replace("find_packages, setup", "find_packages")
    names = {"setup": arguments.update, "__file__": str(ROOT / "setup.py")}
    exec(compile(source, "setup.py", "exec"), names)
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", "--no-cache-dir", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", *arguments["extras_require"][extra]], check=True)
    subprocess.run(
        [*pip, "numpy<1.24" if sys.version_info < (3, 12) else "numpy<2", "requests"], check=True
    )
    subprocess.run([*pip, "--no-deps", "graphviz==0.8.4"], check=True)

    def imported():
        done = subprocess.run(
            [python, "-c", "import gluon_amp"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        return sentence(done)

    # all libraries were loaded, since the driver is loaded last
    assert imported() == driver_missing(f"mxnet-{extra}")
    library = next((tmp_path / "venv").glob("lib/python*/site-packages/mxnet/libmxnet.so"))
    needed = subprocess.run(["ldd", str(library)], capture_output=True, text=True).stdout
    missing = set(re.findall(r"^\s*(\S+) => not found", needed, re.MULTILINE))
    known = {one.soname for one in LIBRARIES if f"mxnet-{extra}" in one.wheels}
    assert missing - known - {"libcuda.so.1"} == set()
    shutil.rmtree(next(library.parents[1].glob("nvidia/cudnn")))
    assert imported().startswith(f"mxnet-{extra} needs libcudnn.so.8, which could not be loaded")
    shutil.rmtree(tmp_path / "venv")
