"""Names of mxnet.contrib.amp: the error says what to use, as in the guide."""

import doctest
import re

import pytest

import gluon_amp as amp
from gluon_amp.base import migration
from tests import ROOT

import mxnet.contrib.amp as contrib_amp

PUBLIC = [name for name in dir(contrib_amp) if not name.startswith("_") and name != "amp"]
HERE = ["init_trainer", "scale_loss", "unscale"]
GONE = sorted({*PUBLIC, *contrib_amp.amp.__all__, "convert_bucketing_module"} - {*HERE})


def test_the_guide_has_these_replacements():
    page = (ROOT / "docs" / "guide" / "from_contrib_amp.md").read_text()
    rows = re.findall(r"^\| (.+) \| (.+) \|$", page.replace("`", ""), re.MULTILINE)
    for gone, new in migration.REPLACEMENTS.items():
        assert any(f"amp.{gone.rstrip('*')}" in old and new == here for old, here in rows), gone


def test_the_page_for_readers_of_other_frameworks_has_these_replacements():
    page = " ".join((ROOT / "docs" / "guide" / "from_torch_and_keras.md").read_text().split())
    page = page.replace("`", "")
    for system, names in migration.SYSTEMS.items():
        for gone, new in names.items() if system != "mxnet.contrib.amp" else ():
            assert new.partition(" to leave MXNet")[0] in page, gone
            with pytest.raises(AttributeError, match=re.escape(f"{gone!r} of {system}: use {new}")):
                getattr(amp, gone)


def test_every_public_name_of_contrib_amp_is_here_or_has_its_replacement():
    assert len(GONE) > 12 and {"init", "convert_model", "list_lp16_ops", "lists"} < {*GONE}
    assert all(hasattr(amp, name) for name in HERE)
    for name in GONE:
        use = migration.REPLACEMENTS.get(name, "amp.")
        message = re.escape(f"gluon_amp has no {name!r} of mxnet.contrib.amp: use {use}")
        with pytest.raises(AttributeError, match=message):
            getattr(amp, name)
    with pytest.raises(AttributeError, match="use amp.symbolic.convert"):
        print(amp.convert_model)
    with pytest.raises(AttributeError, match="use amp.symbolic.BucketingModule"):
        print(amp.convert_bucketing_module)


def test_what_the_table_recommends_exists():
    for new in migration.REPLACEMENTS.values():
        for path in re.findall(r"\bamp\.([\w.]+)", new):
            what = amp
            for part in path.rstrip(".").split("."):
                what = getattr(what, part)


def test_an_import_shows_the_sentence_too():
    with pytest.raises(ImportError, match="has no 'init' of mxnet.contrib.amp: use amp.cast"):
        from gluon_amp import init  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'imit'"):
        from gluon_amp import imit  # noqa: F401


def test_other_names_get_near_matches():
    with pytest.raises(AttributeError, match=r"no 'Trainr' \(did you mean 'Trainer' or "):
        print(amp.Trainr)
    with pytest.raises(AttributeError, match=r"has no 'xylophone'\.$"):
        print(amp.xylophone)


def test_what_looks_for_names_works_as_for_any_module():
    assert not hasattr(amp, "init") and getattr(amp, "init", None) is None
    assert not hasattr(amp, "__wrapped__")
    assert not {*GONE} & {*dir(amp)}
    names = {}
    exec("from gluon_amp import *", names)
    assert {*names} - {"__builtins__"} == {*amp.__all__}
    from gluon_amp import checkpoint  # a room, which is no public name

    assert checkpoint.__name__ == "gluon_amp.checkpoint"
    assert doctest.DocTestFinder(exclude_empty=False).find(amp)
