"""Random networks run under every low-precision policy, within the bounds of `closeness`.

The suite runs a few of them, always the same; `--random-nets 300 --random-nets-seed 7` runs others.
They run in a separate process, since some of MXNet's operators crash: a crash in float32 skips a
network, a crash of the cast network is a failure.
"""

import multiprocessing
import traceback

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.policy import Policy
from tests import closeness
from tests.random_nets import RandomNet

import mxnet as mx

LARGEST = 4096.0
POLICIES = ["float16", "bfloat16"]


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--random-nets-seed") * 1000
        count = metafunc.config.getoption("--random-nets")
        metafunc.parametrize("seed", range(first, first + count))


class UnusableError(Exception):
    """A network that cannot test a policy."""


def float32_of(net):
    """Return a network's results in float32 and the largest distances that policies may have."""
    inputs = [net.x]
    try:
        expected = closeness.measure(net, inputs)
    except mx.MXNetError as error:
        raise UnusableError(f"float32 fails: {error}") from None
    if max(np.abs(values).max() for values in expected.values()) > LARGEST:
        raise UnusableError("gradients beyond the range of float16, whatever computes them")
    dtypes = {policy: Policy.parse(policy).compute_dtype for policy in POLICIES}
    return expected, {p: closeness.bounds(net, inputs, expected, dtypes[p]) for p in POLICIES}


def too_far(net, expected, allowed):
    """Return the results of the cast network out of bounds: policy, result, distance, bound."""
    far = []
    for policy in POLICIES:
        amp.cast(net, policy)
        distances = closeness.distances(closeness.measure(net, [net.x]), expected)
        bounds = allowed[policy]
        far += [
            (policy, name, d, bounds[name]) for name, d in distances.items() if d > bounds[name]
        ]
        amp.cast(net, "float32")
    return far


def answer(connection):
    """Receive seeds; for each, send whether the network works in float32, then `too_far` of it."""
    while True:
        seed = connection.recv()
        try:
            net = RandomNet(seed)
            net.hybridize()
            expected, allowed = float32_of(net)
            connection.send("works in float32")
            connection.send((net.shape, net.names, too_far(net, expected, allowed)))
        except UnusableError as reason:
            connection.send(reason)
        except Exception:
            connection.send(AssertionError(traceback.format_exc()))


class Answers:
    """A process that runs `answer`; after a crash, the next request starts another one."""

    def __init__(self):
        self.process = None

    def request(self, seed):
        if self.process is None:
            spawn = multiprocessing.get_context("spawn")
            self.connection, other = spawn.Pipe()
            self.process = spawn.Process(target=answer, args=(other,), daemon=True)
            self.process.start()
            other.close()
        self.connection.send(seed)

    def next(self):
        """Return the next message, or None after a crash."""
        try:
            sent = self.connection.recv()
        except (EOFError, ConnectionError):
            self.end()
            return None
        if isinstance(sent, AssertionError):
            raise sent
        return sent

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.process = None


@pytest.fixture(scope="module")
def answers():
    answers = Answers()
    yield answers
    answers.end()


def test_a_random_net_gives_what_it_gives_in_float32(seed, answers):
    answers.request(seed)
    float32 = answers.next()
    if float32 is None:
        pytest.skip("stock MXNet crashes in float32")
    if isinstance(float32, UnusableError):
        pytest.skip(str(float32))
    cast = answers.next()
    assert cast is not None, "the cast network crashes"
    shape, names, far = cast
    assert far == [], (shape, names)


def test_a_crash_costs_one_answer(answers):
    answers.request(0)
    answers.process.kill()
    answers.process.join()
    while answers.next() is not None:
        pass  # the messages before the crash
    answers.request(1)
    assert answers.next() == "works in float32"
    assert answers.next()[2] == []
