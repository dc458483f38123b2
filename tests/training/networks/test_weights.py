"""The weights a network begins with."""

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.networks import weights as network_weights
from gluon_amp.training.networks.models import build

from mxnet import nd


@pytest.mark.parametrize(
    "name, blocks",
    [("resnet50_v1b", 16), ("cifar_resnet8_v1", 3)],  # GluonCV's bn3, and MXNet's body
)
def test_last_gammas_are_zero_and_others_one(name, blocks):
    net = build(name, 10)
    assert network_weights.zero_last_gammas(net, name) == blocks
    net.initialize()
    gammas = [p for n, p in net.collect_params().items() if n.endswith("gamma")]
    net(nd.zeros((1, 3, 32, 32)))
    zeros = [gamma for gamma in gammas if not gamma.data().asnumpy().any()]
    assert len(zeros) == blocks
    others = [gamma for gamma in gammas if gamma not in zeros]
    assert all((gamma.data().asnumpy() == 1).all() for gamma in others)


@pytest.mark.parametrize("name", ["alexnet", "resnet18_v2"])
def test_networks_without_such_blocks_are_refused(name):
    with pytest.raises(UsageError, match=f"--last-gamma: {name} has no residual blocks"):
        network_weights.zero_last_gammas(build(name, 10), name)


@pytest.mark.parametrize("name", ["none.params", "text.params", "list.params"])
def test_files_that_are_no_parameters(tmp_path, name):
    (tmp_path / "text.params").write_bytes(b"x")
    nd.save(str(tmp_path / "list.params"), [nd.zeros(1)])
    held = "holds arrays without names" if name == "list.params" else "cannot be read as parameters"
    with pytest.raises(UsageError, match=f"{name} {held}"):
        network_weights.load_matching(build("convnet", 7), tmp_path / name)


def test_a_dead_host_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_GLUON_REPO", "http://127.0.0.1:9/")
    with pytest.raises(UsageError, match="cannot be downloaded .*MXNET_GLUON_REPO to a mirror"):
        network_weights.zoo_file("resnet18_v1", tmp_path)
    with pytest.raises(UsageError, match="no zoo has weights of cifar_resnet8_v1"):
        network_weights.zoo_file("cifar_resnet8_v1", tmp_path)
