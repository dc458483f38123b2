"""setup.py, constraints.txt, the Makefile, and their messages on unsupported machines."""

import itertools
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from experiments import matrix
from experiments import pins as pin_check
from tests import ROOT

MXNET_WHEELS = {"cpu": "mxnet", "cu112": "mxnet-cu112", "cu117": "mxnet-cu117"}
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture(scope="module")
def metadata():
    """Return the arguments of setup() in setup.py."""
    arguments = {}
    source = (ROOT / "setup.py").read_text().replace("find_packages, setup", "find_packages")
    names = {"setup": arguments.update, "__file__": str(ROOT / "setup.py")}
    exec(compile(source, "setup.py", "exec"), names)
    return arguments


def test_an_installation_has_the_whole_package_and_nothing_else(tmp_path):
    """It has every source, including those in C++, and no experiments, scripts or tests."""
    source = tmp_path / "source"
    copied = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info", "docs", "tests")
    shutil.copytree(ROOT, source, ignore=copied)
    (source / "tests").mkdir()
    (source / "tests" / "__init__.py").touch()
    build = [sys.executable, "setup.py", "-q", "build", "--build-lib", str(tmp_path / "built")]
    subprocess.run(build, cwd=source, check=True)
    assert files_in(tmp_path / "built") == {
        "gluon_amp_console.py",
        *(f"gluon_amp/{name}" for name in files_in(source / "gluon_amp")),
    }


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def name_of(requirement):
    return re.match(r"[A-Za-z0-9_.-]+", requirement).group().lower()


def pins():
    """Yield the name and the marker of every line of constraints.txt."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement, _, marker = line.partition(";")
            yield name_of(requirement), marker.strip()


def test_mxnet_is_an_extra_and_each_extra_has_one_wheel(metadata):
    assert not any(name_of(r).startswith("mxnet") for r in metadata["install_requires"])
    for extra, requirements in metadata["extras_require"].items():
        wheels = {name_of(r) for r in requirements if name_of(r).startswith("mxnet")}
        assert wheels == ({MXNET_WHEELS[extra]} if extra in MXNET_WHEELS else set())


def test_cudnn_stays_below_9(metadata):
    for extra in ("cu112", "cu117"):
        assert "nvidia-cudnn-cu11==8.9.6.50" in metadata["extras_require"][extra]


def test_supported_pythons(metadata):
    assert metadata["python_requires"] == ">=3.8,<3.13"
    assert metadata["version"] == __import__("gluon_amp").__version__


def test_every_requirement_is_pinned_once_for_every_python(metadata):
    extras = metadata["extras_require"]
    required = {
        name_of(r)
        for extra in ("cpu", "gluoncv", "data", "notebooks", "test")
        for r in itertools.chain(extras[extra], metadata["install_requires"])
    }
    for minor in range(8, 13):
        names = [name for name, marker in pins() if not marker or eval_marker(marker, f"3.{minor}")]
        assert len(names) == len(set(names))
        assert required <= set(names)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Return what adds an empty wheel to the package index that uv reads."""
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))

    def add(name, version, *metadata):
        header = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *metadata]
        with zipfile.ZipFile(tmp_path / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(header))

    return add


def test_a_pin_that_a_python_cannot_install_is_named(index):
    index("markdown", "3.11", "Requires-Python: >=3.11")
    sentence = pin_check.fault("3.10", "markdown>=3", "Markdown==3.11")
    assert sentence.startswith("constraints.txt cannot be installed on Python 3.10: Because")
    assert "markdown==3.11 requires Python >=3.11" in sentence
    assert pin_check.fault("3.11", "markdown>=3", "Markdown==3.11") is None


def test_a_package_without_a_pin_is_named(index):
    index("mkdocs", "1.6.1", "Requires-Dist: path_spec")
    index("path_spec", "0.12")
    assert pin_check.fault("3.8", "mkdocs>=1.6", "mkdocs==1.6.1") == (
        "constraints.txt lacks packages that Python 3.8 installs: add path-spec==0.12."
    )
    assert pin_check.fault("3.8", "mkdocs>=1.6", "mkdocs==1.6.1\nPath.Spec==0.12") is None


def test_an_index_that_cannot_be_read_is_no_success(index, monkeypatch):
    monkeypatch.setenv("UV_FIND_LINKS", "no/such/folder")
    sentence = pin_check.fault("3.8", "mkdocs", "mkdocs==1.6.1")
    assert sentence.startswith("Python 3.8 was not checked, as uv failed: ")


def eval_marker(marker, python):
    operator, version = re.fullmatch(r'python_version (<|>=) "(3\.\d+)"', marker).groups()
    here, there = (int(text.split(".")[1]) for text in (python, version))
    return here < there if operator == "<" else here >= there


def fake_python(folder, version, venv_works=True):
    """Write an executable that replies to check-python like another version of Python."""
    path = folder / "python3"
    path.write_text(
        "#!/bin/sh\n"
        f'case "$2" in *version*) echo {version};; *venv*) exit {0 if venv_works else 1};; esac\n'
    )
    path.chmod(0o755)
    return path


def check_python(python):
    return subprocess.run(
        ["sh", str(ROOT / ".ci" / "check-python"), str(python)],
        capture_output=True,
        encoding="utf-8",
    )


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12"])
def test_supported_pythons_are_accepted(tmp_path, version):
    done = check_python(fake_python(tmp_path, version))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "version, venv_works, sentence",
    [
        ("3.13", True, "is Python 3.13, but MXNet 1.9.1 needs 3.8 to 3.12"),
        ("3.7", True, "is Python 3.7, but MXNet 1.9.1 needs 3.8 to 3.12"),
        ("2.7", True, "is Python 2.7, but"),
        ("3.11", False, "has no venv module: on Debian or Ubuntu"),
    ],
)
def test_unsupported_pythons_are_refused_in_one_sentence(tmp_path, version, venv_works, sentence):
    done = check_python(fake_python(tmp_path, version, venv_works))
    assert done.returncode == 1
    assert sentence in done.stderr and done.stderr.count("\n") == 1


def test_a_missing_python_is_refused_in_one_sentence():
    done = check_python("no-such-python")
    assert done.returncode == 1
    assert "no-such-python was not found" in done.stderr and done.stderr.count("\n") == 1


@needs_make
def test_make_train_runs_the_published_command():
    done = subprocess.run(
        ["make", "-n", "-C", str(ROOT), "train", "VENV=somewhere", "ARGS=--seed 1"],
        capture_output=True,
        encoding="utf-8",
    )
    command = (
        "somewhere/bin/python scripts/train_imagenet.py --dtype float16 --batch-size 256 --seed 1"
    )
    assert command in done.stdout.splitlines()


@needs_make
def test_make_train_installs_less_than_make_test(tmp_path):
    """A step adds packages to the environment of another one, and does not make it again."""
    made = tmp_path / "venv"
    steps = {target: installed(made, target) for target in ("train", "docs", "test")}
    assert steps["train"] == ["cpu,gluoncv,data"]
    assert steps["docs"] == ["cpu,gluoncv,data", "docs"]
    assert steps["test"][0] == "cpu,gluoncv,data" and "test" in steps["test"][1].split(",")
    made.mkdir()
    for stamp in (".created", ".train"):
        (made / stamp).touch()
    assert installed(made, "train") == []
    assert installed(made, "docs") == ["docs"]


def installed(venv, target):
    """Return the extras that make installs for a target, one text for each call of pip."""
    done = subprocess.run(
        ["make", "-n", "-C", str(ROOT), target, f"VENV={venv}"],
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert ("venv --clear" in done.stdout) == (not venv.exists())
    return re.findall(r"pip install .*\[(.*)\]", done.stdout)


def test_matrix_pins_one_numpy(tmp_path):
    constraints = shutil.copy(ROOT / "constraints.txt", tmp_path)
    matrix.pin_numpy(pathlib.Path(constraints), "1.26.4")
    pinned = (tmp_path / "constraints.txt").read_text().splitlines()
    assert [line for line in pinned if line.startswith("numpy")] == ["numpy==1.26.4"]
    assert "mxnet==1.9.1" in pinned


def test_matrix_covers_every_supported_python():
    assert sorted({int(version[2:]) for version, _ in matrix.PAIRS}) == [8, 9, 10, 11, 12]


@needs_make
@pytest.mark.parametrize(
    "status, result",
    [(0, "1 failed, 2 passed; 3 passed"), (1, "FAILED: 1 failed, 2 passed; 3 passed")],
)
def test_matrix_runs_the_makefile_of_a_copy(status, result, tmp_path, monkeypatch):
    """A Makefile that prints what it is called with stands in for hours."""
    (tmp_path / "constraints.txt").write_text("numpy==1.23.5\n")
    (tmp_path / "Makefile").write_text(
        "train:\n\t@cat constraints.txt >log; echo '$(PYTHON) $(ARGS)' >>log\n"
        f"test:\n\t@mv log '{tmp_path}'; "
        f"echo '= 1 failed, 2 passed ='; echo; echo 3 passed; echo over; exit {status}\n"
    )
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=--only")
    monkeypatch.setenv("MAKELEVEL", "1")
    assert matrix.check("python3.8", "1.26.4", "-k x") == result
    assert (tmp_path / "log").read_text() == "numpy==1.26.4\npython3.8 --num-epochs 1\n"


def test_matrix_does_not_count_a_missing_python_as_passed(monkeypatch, capsys):
    monkeypatch.setattr(matrix, "PAIRS", [("3.99", "1.26.4")])
    assert matrix.main([]) == 1
    assert "skipped: python3.99 is not installed" in capsys.readouterr().out


def test_without_mxnet_the_import_names_the_extras(tmp_path):
    """The last line is one sentence. The import system hides MXNet."""
    code = (
        "import sys, importlib.abc\n"
        "class Hide(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'mxnet': raise ModuleNotFoundError(name, name='mxnet')\n"
        "sys.meta_path.insert(0, Hide())\n"
        "import gluon_amp\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8"
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "ImportError: MXNet is not installed: run `pip install 'gluon-amp[cpu]'`"
    )
    assert "cu112" in last and "cu117" in last


def test_every_phony_target_has_a_rule_and_a_line_of_help():
    """make does nothing for a phony target without a rule, and reports success."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", "")
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE).group(1).split())
    assert phony == set(re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE))
