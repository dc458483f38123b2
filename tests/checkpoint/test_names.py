"""Names with `{step}`, and the files that `keep` leaves."""

import pytest

from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
from gluon_amp.checkpoint.names import newest
from tests.checkpoint.helpers import made, names, run


def test_keep_leaves_the_newest_and_without_it_all_stay(tmp_path):
    net, trainer = made()
    run(net, trainer, [0])
    for folder, keep, left in (("a", 2, [4, 5]), ("{step}", None, [0, 1, 3, 4, 5])):
        path = tmp_path / folder / "run{step}-{step}.ckpt"
        path.parent.mkdir()
        for step in (0, 1, 3, 4, 5):
            trainer.optimizer.num_update = step
            save_checkpoint(path, net, trainer, keep=keep, data=step)
        assert names(path.parent) == [f"run{step}-{step}.ckpt" for step in left]
        assert load_checkpoint(path, net, trainer) == {"data": 5}
        assert load_checkpoint(path.parent / "run4-4.ckpt", net, trainer) == {"data": 4}


def test_steps_are_compared_as_numbers_and_other_files_are_left_alone(saved, tmp_path):
    _, net, trainer = saved  # its step is 2
    trainer.optimizer.num_update = 100
    others = ["net-x.ckpt", "net-7.ckpt.bak", "anet-7.ckpt", "net-.ckpt", "net-7.CKPT", "net.ckpt"]
    for name in [*others, "net-9.ckpt", "net-10.ckpt", "net-200.ckpt", "net-300.ckpt"]:
        (tmp_path / name).write_text("")
    save_checkpoint(tmp_path / "net-{step}.ckpt", net, trainer, keep=2)
    # 200 is later than the step just saved. It is of an abandoned run, but a save cannot know this.
    kept = ["net-100.ckpt", "net-200.ckpt", "net-300.ckpt"]
    assert names(tmp_path) == sorted([*others, *kept])


def test_keep_is_a_number_of_numbered_files(saved):
    path, net, trainer = saved
    for keep in (0, 2.0, True, "3"):
        with pytest.raises(ValueError, match="keep must be a whole number of at least 1, received"):
            save_checkpoint(path, net, trainer, keep=keep)
    with pytest.raises(ValueError, match=r"put \{step\} into the name, as in 'net-\{step\}.ckpt'"):
        save_checkpoint(path, net, trainer, keep=3)


def test_the_newest_has_the_highest_number_in_all_places(tmp_path):
    for name in ("a9-9", "a10-10", "a11-12"):
        (tmp_path / name).touch()
    assert newest(str(tmp_path / "a{step}-{step}")) == str(tmp_path / "a10-10")
