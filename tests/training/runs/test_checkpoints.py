"""Which checkpoints a run keeps, and which it resumes from."""

import os
import shutil

import pytest

import gluon_amp as amp
from gluon_amp.base.messages import UsageError
from gluon_amp.checkpoint import read_extra
from gluon_amp.training.console import train
from gluon_amp.training.networks.models import build
from gluon_amp.training.runs import checkpoints
from gluon_amp.training.runs.checkpoints import BEST, Checkpoints, Position, Saved

from mxnet import nd


def test_a_position_counts_samples():
    position = Position(1, 96)
    assert position.first_batch(32, 1437) == 3
    assert position.first_batch(16, 1437) == 6
    assert Position(1, 1437).first_batch(32, 1437) == 45
    with pytest.raises(UsageError, match="after 96 samples of epoch 1, which is inside a batch"):
        position.first_batch(64, 1437)


def test_names_of_checkpoints_sort_by_position(tmp_path):
    assert Checkpoints(tmp_path, 3).newest() is None
    at = ("002-sample00000000", "001-sample00000100", "001-sample00000032")
    for name in (*(f"epoch{each}.ckpt" for each in at), BEST, "epoch1.ckpt.tmp"):
        (tmp_path / name).write_bytes(b"")
    positions = [position for position, _ in Checkpoints(tmp_path, 3).existing()]
    assert positions == [Position(1, 32), Position(1, 100), Position(2, 0)]
    with pytest.raises(UsageError, match="holds 3 checkpoints and none can be read"):
        Checkpoints(tmp_path, 3).newest()


def test_one_run_writes_to_a_folder(tmp_path):
    folder = Checkpoints(tmp_path, 3)
    refused = pytest.raises(UsageError, match="another run writes to")
    with folder.locked(), refused as caught, folder.locked():
        pass
    assert f"{tmp_path} (process {os.getpid()} on " in str(caught.value)
    with folder.locked():
        pass


def test_the_oldest_are_removed_and_the_best_stays(tmp_path):
    net = build("convnet", 10)
    net.initialize()
    net(nd.zeros((1, 3, 28, 28)))
    trainer = amp.Trainer(net.collect_params(), "sgd")
    folder = Checkpoints(tmp_path, 2)
    folder.save(net, trainer, Position(0, 32), {}, {}, best=True)
    for samples in (32, 64, 96):
        folder.save(net, trainer, Position(0, samples), {}, {})
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {BEST, "epoch000-sample00000064.ckpt", "epoch000-sample00000096.ckpt"}


@pytest.fixture
def saved(trained, tmp_path):
    return shutil.copytree(trained.save_dir, tmp_path / "saved")


LAST, EARLIER = "epoch002-sample00000000.ckpt", "epoch001-sample00000064.ckpt"


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ([], "holds checkpoints of an earlier run: continue with --resume auto"),
        (["--resume", "auto", "--model", "cifar_resnet20_v1"], "with the model cifar_resnet8_v1"),
        (["--resume", "auto", "--dtype", "float32"], "with --dtype float16"),
        (["--resume", "digits-cifar_resnet8_v1-1.params"], "by amp.save_checkpoint"),
        (["--resume", EARLIER], f"holds later checkpoints than {EARLIER}, such as {LAST}"),
    ],
)
def test_a_run_does_not_go_on_with_another(
    trained, saved, arguments, sentence, monkeypatch, refused
):
    monkeypatch.chdir(saved)
    words = [*trained.options, "--save-dir", saved, *arguments]
    assert sentence in refused(train.main, words)


def test_a_run_in_mid_epoch_goes_on_in_the_same_order(trained):
    middle = Saved.read(trained.save_dir / EARLIER)
    middle.check(middle.identity)
    for name, words in (
        ("total_batch", "32 samples in an update"),
        ("seed", "--seed 7"),
        ("workers", "1 workers"),
    ):
        with pytest.raises(UsageError, match=f"with {words}, in the middle of an epoch"):
            middle.check({**middle.identity, name: 9})
        Saved.read(trained.save_dir / LAST).check({**middle.identity, name: 9})


@pytest.mark.parametrize(
    "forge",
    [
        lambda extra: extra.pop("progress"),
        lambda extra: extra.update(position=[7, 0]),
        lambda extra: extra["identity"].update(model=[1]),
        lambda extra: extra["progress"].update(rate="fast"),
        lambda extra: extra["progress"].update(workers=[]),
        lambda extra: extra["progress"]["history"].update(averaged=[None] * 9),
        lambda extra: extra["progress"]["workers"][0]["counts"].update(right=None),
        lambda extra: extra["progress"]["history"].update(validated=[{"top1": 1}]),
    ],
)
def test_a_forged_checkpoint_is_refused_in_one_sentence(forge, trained, monkeypatch):
    path = trained.save_dir / "epoch001-sample00000000.ckpt"
    extra = read_extra(path)
    forge(extra)
    monkeypatch.setattr(checkpoints, "read_extra", lambda _: extra)
    with pytest.raises(UsageError, match="is a checkpoint, but not of a run that can be resumed: "):
        Saved.read(path)
