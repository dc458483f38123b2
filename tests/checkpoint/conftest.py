import pytest

from gluon_amp.checkpoint import save_checkpoint
from tests.checkpoint.helpers import make_net, make_trainer, run


@pytest.fixture
def saved(tmp_path):
    """The path of a checkpoint of a float16 net after three steps, with the net and its trainer."""
    net = make_net()
    trainer = make_trainer(net)
    run(net, trainer, range(3))
    return save_checkpoint(tmp_path / "net.ckpt", net, trainer, epoch=3), net, trainer
