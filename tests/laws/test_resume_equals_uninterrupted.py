"""Law 5: a resumed run equals one that was never interrupted, bit for bit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gluon_amp as amp
from tests.laws.training import LOW_PRECISION, OPTIMIZERS, Training

import mxnet as mx

law = settings(deadline=None, derandomize=True, max_examples=6)
names = st.sampled_from(sorted(OPTIMIZERS))


def by_states(folder, saved, loaded):
    saved.net.save_parameters(str(folder / "net"))
    saved.trainer.save_states(str(folder / "states"))
    loaded.net.load_parameters(str(folder / "net"))
    loaded.trainer.load_states(str(folder / "states"))


def by_checkpoint(folder, saved, loaded):
    amp.save_checkpoint(str(folder / "checkpoint"), saved.net, saved.trainer)
    amp.load_checkpoint(str(folder / "checkpoint"), loaded.net, loaded.trainer)


@pytest.mark.parametrize("pass_on", [by_states, by_checkpoint])
@pytest.mark.parametrize("policy", LOW_PRECISION)
@law
@given(
    st.sampled_from(sorted(OPTIMIZERS)), st.lists(st.booleans(), min_size=2, max_size=7), st.data()
)
def test_from_any_step_into_a_used_trainer(tmp_path_factory, pass_on, policy, name, finites, data):
    cut = data.draw(st.integers(1, len(finites) - 1))

    def make():
        schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.05)
        training = Training(
            name, amp.DynamicLossScale(4, growth_interval=3, hysteresis=2, min_scale=0.5), policy
        )
        training.trainer.optimizer.lr_scheduler = schedule
        return training

    def steps(training, start, stop):
        return [training.step(i, overflow=not finites[i]) for i in range(start, stop)]

    whole, first, second = make(), make(), make()
    reports = steps(whole, 0, len(finites))
    steps(first, 0, cut)
    steps(second, 0, 1)  # its earlier steps leave no trace
    pass_on(tmp_path_factory.mktemp("resume"), first, second)
    assert steps(second, cut, len(finites)) == reports[cut:]
    assert second.everything() == whole.everything()
    assert second.trainer.loss_scale.state_dict() == whole.trainer.loss_scale.state_dict()
