"""A trainer on MXNet's parameter server: what is refused before anything waits."""

import pytest

from gluon_amp import Trainer
from gluon_amp.base import parameter_server
from tests.trainer.helpers import parameter

MISSING = (
    r"^kvstore dist_sync needs servers, and DMLC_ROLE is not set: start with `gluon-amp launch"
)


@pytest.mark.parametrize(
    "stores, sentence", [({}, MISSING), ({"first": True}, "^MXNet's servers cannot tell .* two")]
)
def test_what_would_wait_for_ever_is_refused(stores, sentence, monkeypatch):
    monkeypatch.delenv("DMLC_ROLE", raising=False)
    monkeypatch.setattr(parameter_server, "_STORES", stores)
    trainer = Trainer([parameter("p", [1.0])], "sgd", kvstore="dist_sync")
    with pytest.raises(ValueError, match=sentence):
        trainer.ready()
