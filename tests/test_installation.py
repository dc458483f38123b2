"""The wheel and the source distribution, each installed into a new environment and used there."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from email import message_from_bytes
from zipfile import ZipFile

import pytest

import gluon_amp as amp
from gluon_amp.kernels import obtain
from tests import ROOT
from tests.marks import needs_library

pytestmark = pytest.mark.slow

IGNORED = re.compile(
    r"(.*/)?(\.[^/]+|__pycache__|build|dist|[^/]*\.egg-info)(/.*)?"
    r"|docs/results/[^/]+/[^/]+/.*|(params|runs|results)/.*|.*\.log"
)


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=280, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Return the wheel and the source distribution, and leave the sources as they are."""
    folder = tmp_path_factory.mktemp("distributions")
    source = folder / "source"
    for name in sources():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(ROOT / name, source / name)
    run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", folder, cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    return {"wheel": wheel(source, folder), "sdist": sdist}


def wheel(source, folder):
    """Return the wheel of a folder or of a source distribution, built without a download."""
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation")
    run(*pip, "--wheel-dir", folder, source)
    (built,) = folder.glob("*.whl")
    return built


def sources():
    """Return the names of the files of this checkout, without those that git ignores."""
    names = (str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file())
    kept = {name for name in names if not IGNORED.fullmatch(name)}
    return kept | {".ci/check-python", ".ci/run", ".gitignore"}


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(request, distributions, tmp_path_factory):
    """Return the `bin` of an environment with one of them and the packages of this environment."""
    folder = tmp_path_factory.mktemp(request.param)
    package = distributions[request.param]
    return install(wheel(package, folder) if request.param == "sdist" else package, folder)


def install(package, folder):
    """Return the `bin` of an environment in a folder with a wheel and this one's packages."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install")
    run(*pip, "--no-deps", "--no-index", package, cwd=folder, env=without_checkout())
    packages = next(folder.glob("lib/python3.*/site-packages"))
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def without_checkout():
    """Return the variables of a process that does not find this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture
def command(installed, tmp_path):
    """Return a function that runs `gluon-amp` in an empty folder, and returns what it prints."""

    def call(*arguments, prog=(installed / "gluon-amp",)):
        return run(*prog, *arguments, cwd=tmp_path, env=without_checkout())

    return call


def test_an_installation_trains_the_digits_in_an_empty_folder(command, installed, tmp_path):
    assert command("--version") == f"gluon-amp {amp.__version__}\n"
    code = "import gluon_amp, gluon_amp_console; print(gluon_amp.__file__)"
    imported = command(prog=(installed / "python", "-c", code))
    assert imported.startswith(str(installed.parent))  # and not this checkout
    printed = command("train", "--dtype", "float16", "--num-epochs", "2", "--max-batches", "2")
    assert "digits: 1437 training and 360 validation images" in printed
    assert "[Epoch 1] validated 360/360" in printed
    assert list(tmp_path.iterdir()) == []


@needs_library
def test_a_wheel_with_kernels_needs_no_compiler(tmp_path):
    """The library of this machine stands for one that is compiled in Debian 11."""
    library = obtain.find()
    build = (sys.executable, "-m", "experiments.wheel", "--library", library, "--output", tmp_path)
    run(*build, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    needed = re.findall(rb"\0GLIBC_2\.(\d+)", library.read_bytes())
    assert int(re.search(r"-manylinux_2_(\d+)_", wheel.name).group(1)) >= max(map(int, needed))
    assert "manylinux_2_" in run(sys.executable, "-m", "auditwheel", "show", wheel)
    with ZipFile(wheel) as archive:
        compiled = [name for name in archive.namelist() if ".so" in name]
    assert compiled == [f"gluon_amp/kernels/prebuilt/{library.name}"]  # and no second libgomp
    bin = install(wheel, tmp_path / "venv")
    bare = {"PATH": str(bin), "XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": ""}
    printed = run(bin / "gluon-amp", "doctor", env={**without_checkout(), **bare})
    assert "C++ compiler: none found; C++ kernels: prebuilt, checked here" in printed


def test_an_installation_has_every_command(command, installed):
    assert "Policy float16 can run here" in command("doctor", "--policy", "float16")
    code = (
        "import gluon_amp_console as console, importlib\n"
        "for name in console.COMMANDS:\n"
        "    module = 'gluon_amp.training.console.' + name.replace('-', '_')\n"
        "    command = importlib.import_module(module)\n"
        "    try: command.main(['--help'], name)\n"
        "    except SystemExit as stop: assert stop.code == 0\n"
    )
    printed = command(prog=(installed / "python", "-c", code))
    usages = re.findall(r"^usage: (\S+)", printed, re.MULTILINE)
    assert usages == re.findall(r"^  ([a-z-]+) ", command("--help"), re.MULTILINE)
    assert len(usages) == 10


def test_the_source_distribution_has_every_file(distributions):
    with tarfile.open(distributions["sdist"]) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {name for name in names if name.startswith("gluon_amp.egg-info/")}
    assert names - made - {"PKG-INFO", "setup.cfg"} == sources()


def test_the_source_distribution_runs_its_tests(distributions, tmp_path):
    with tarfile.open(distributions["sdist"]) as archive:
        archive.extractall(tmp_path)
    (folder,) = tmp_path.iterdir()
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    tests = ("tests/base/test_messages.py", "tests/test_packaging.py")
    run(sys.executable, "-m", "pytest", "-x", *tests, cwd=folder, env=environment)


def test_the_metadata_is_whole_and_the_description_has_no_dead_link(distributions):
    with ZipFile(distributions["wheel"]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = message_from_bytes(wheel.read(name))
    assert metadata["Author"] == "The gluon_amp maintainers"
    assert "Programming Language :: Python :: 3.8" in metadata.get_all("Classifier")
    assert all(re.search(r", https://\S+$", url) for url in metadata.get_all("Project-URL"))
    description = metadata.get_payload()
    headings = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", description, re.MULTILINE)
    }
    targets = re.findall(r"\]\(([^)]*)\)", description)
    assert "docs/gpu.md" in description  # a link of the README, as text
    for target in targets:
        assert target.startswith("https://") or target.lstrip("#") in headings, target
