"""setup.py, constraints.txt, the Makefile, and their messages on unsupported machines."""

import inspect
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import gluon_amp as amp
from experiments import matrix
from experiments import pins as pin_check
from gluon_amp.base.messages import BARE, install
from tests import ROOT
from tests.documents.test_docs import DOCUMENTED

MXNET_WHEELS = {"cpu": "mxnet", "cu112": "mxnet-cu112", "cu117": "mxnet-cu117"}
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def printed(*command, status=0):
    """Return what a command prints on its streams, both of text."""
    done = subprocess.run([*map(str, command)], capture_output=True, encoding="utf-8", cwd=ROOT)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


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


def signatures(public):
    """Yield the functions of a public name that gluon_amp defines, by their qualified names."""
    if not inspect.isclass(public):
        yield public
        return
    for cls in public.__mro__:
        ours = vars(cls).items() if cls.__module__.startswith("gluon_amp") else ()
        for name, member in ours:
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if inspect.isfunction(function) and (name == "__init__" or name[0] != "_"):
                yield function


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_signature_is_annotated(name):
    for function in signatures(DOCUMENTED[name]):
        expected = {*inspect.signature(function).parameters, "return"} - {"self", "cls"}
        if function.__name__ == "__init__":
            expected.remove("return")
        assert expected <= function.__annotations__.keys(), function


# ------------------------------------------------------------------------------------ requirements


def name_of(requirement):
    return re.match(r"[A-Za-z0-9_.-]+", requirement).group().lower()


def test_the_metadata_of_the_package():
    metadata = pin_check.metadata()
    assert metadata["python_requires"] == ">=3.8,<3.15"
    assert metadata["version"] == amp.__version__
    assert not any(name_of(r).startswith("mxnet") for r in metadata["install_requires"])
    for extra, requirements in metadata["extras_require"].items():  # each has one wheel of MXNet
        wheels = {name_of(r) for r in requirements if name_of(r).startswith("mxnet")}
        assert wheels == ({MXNET_WHEELS[extra]} if extra in MXNET_WHEELS else set())
        if extra in ("cu112", "cu117"):  # MXNet cannot load version 9
            assert "nvidia-cudnn-cu11==8.9.6.50" in requirements
    for extra, bare in BARE.items():  # newer Pythons install it without its metadata
        assert f'{bare}; python_version < "3.13"' in metadata["extras_require"][extra]


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


def test_a_pin_that_a_python_cannot_install_or_that_is_missing_is_named(index, monkeypatch):
    index("markdown", "3.11", "Requires-Python: >=3.11")
    sentence = pin_check.fault("3.10", "markdown>=3", "Markdown==3.11")
    assert sentence.startswith("constraints.txt cannot be installed on Python 3.10: Because")
    assert "markdown==3.11 requires Python >=3.11" in sentence
    assert pin_check.fault("3.11", "markdown>=3", "Markdown==3.11") is None
    index("mkdocs", "1.6.1", "Requires-Dist: path_spec")
    index("path_spec", "0.12")
    assert pin_check.fault("3.8", "mkdocs>=1.6", "mkdocs==1.6.1") == (
        "constraints.txt lacks packages that Python 3.8 installs: add path-spec==0.12."
    )
    assert pin_check.fault("3.8", "mkdocs>=1.6", "mkdocs==1.6.1\nPath.Spec==0.12") is None
    monkeypatch.setenv("UV_FIND_LINKS", "no/such/folder")
    sentence = pin_check.fault("3.8", "mkdocs", "mkdocs==1.6.1")
    assert sentence.startswith("Python 3.8 was not checked, as uv failed: ")


# ------------------------------------------------------------------------------ Python and make


@pytest.mark.parametrize(
    "version, venv_works, sentence",
    [
        *((f"3.{minor}", True, "") for minor in range(8, 15)),
        ("3.15", True, "is Python 3.15, but MXNet 1.9.1 needs 3.8 to 3.14"),
        ("3.7", True, "is Python 3.7, but MXNet 1.9.1 needs 3.8 to 3.14"),
        ("3.11", False, "has no venv module: on Debian or Ubuntu"),
        (None, False, "was not found"),
    ],
)
def test_an_unsupported_python_is_refused_in_one_sentence(tmp_path, version, venv_works, sentence):
    """An executable that replies to check-python like another version of Python stands for it."""
    python = tmp_path / "python3"
    if version:
        reply = f"*version*) echo {version};; *venv*) exit {0 if venv_works else 1};;"
        python.write_text(f'#!/bin/sh\ncase "$2" in {reply} esac\n')
        python.chmod(0o755)
    _, error = printed("sh", ".ci/check-python", python, status=1 if sentence else 0)
    assert sentence in error and error.count("\n") == bool(sentence)


@needs_make
def test_make_train_runs_the_published_command():
    out, _ = printed("make", "-n", "train", "VENV=somewhere", "ARGS=--seed 1")
    script = "somewhere/bin/python scripts/train_imagenet.py"
    assert f"{script} --dtype float16 --batch-size 256 --seed 1" in out.splitlines()
    assert f"--no-deps {BARE['cpu']} {BARE['gluoncv']}\n" in out


@needs_make
def test_make_train_installs_less_than_make_test(tmp_path):
    """A step adds packages to the environment of another one, and does not make it again."""
    made = tmp_path / "venv"

    def installed(target):
        """Return the extras that make installs, one text for each call of pip."""
        out, _ = printed("make", "-n", target, f"VENV={made}")
        assert ("venv --clear" in out) == (not made.exists())
        return re.findall(r"pip install .*\[(.*)\]", out)

    base, (first, second) = ["cpu,gluoncv,data"], installed("test")
    assert installed("train") == base and installed("docs") == [*base, "docs"]
    assert [first] == base and "test" in second.split(",")
    made.mkdir()
    for stamp in (".created", ".train"):
        (made / stamp).touch()
    assert installed("train") == [] and installed("docs") == ["docs"]


def test_every_phony_target_has_a_rule_and_a_line_of_help():
    """make does nothing for a phony target without a rule, and reports success."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", "")
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE).group(1).split())
    assert phony == set(re.findall(r"^([a-z0-9-]+):.*## \S", text, re.MULTILINE))


# ------------------------------------------------------------------------------------- make matrix


@needs_make
@pytest.mark.parametrize("status, result", [(0, "passed"), (1, "FAILED: make test")])
def test_matrix_runs_the_makefile_of_a_copy_with_one_numpy(status, result, tmp_path, monkeypatch):
    """A Makefile that writes what it is called with stands in for hours."""
    (tmp_path / "constraints.txt").write_text("a==1\nnumpy==1.23.5\nnumpydoc==2\n")
    (tmp_path / "Makefile").write_text(
        "train:\n\t@cat constraints.txt >log; echo '$(PYTHON) $(ARGS)' >>log\n"
        f"test:\n\t@mv log '{tmp_path}'; exit {status}\n"
    )
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=--only")
    monkeypatch.setenv("MAKELEVEL", "1")
    assert matrix.check("python3.8", "1.26.4", "-k x") == result
    lines = "a==1\nnumpydoc==2\nnumpy==1.26.4\npython3.8 --num-epochs 1\n"
    assert (tmp_path / "log").read_text() == lines


def test_matrix_covers_every_python_and_a_missing_one_has_not_passed(monkeypatch, capsys):
    assert sorted({int(version[2:]) for version, _ in matrix.PAIRS}) == [8, 9, 10, 11, 12, 13, 14]
    monkeypatch.setattr(matrix, "PAIRS", [("3.99", "1.26.4")])
    assert matrix.main([]) == 1
    assert "skipped: python3.99 is not installed" in capsys.readouterr().out


def test_without_mxnet_the_import_names_the_extras():
    """The last line is one sentence. The import system hides MXNet."""
    code = (
        "import sys, importlib.abc\n"
        "class Hide(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'mxnet': raise ModuleNotFoundError(name, name='mxnet')\n"
        "sys.meta_path.insert(0, Hide())\n"
        "import gluon_amp\n"
    )
    last = printed(sys.executable, "-c", code, status=1)[1].splitlines()[-1]
    start = f"ImportError: MXNet is not installed: run `{install('cpu', 'pip install')}`"
    assert last.startswith(start) and "cu112" in last and "cu117" in last
