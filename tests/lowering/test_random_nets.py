"""Random networks run under every low-precision policy, within the bounds of `closeness`.

The suite runs a few of them, always the same; `--random-nets 300 --random-nets-seed 7` runs others.
They run in a separate process, since some of MXNet's operators crash: a crash in float32 skips a
network, a crash of the cast network is a failure.
"""

import multiprocessing
import traceback
import warnings

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.policy import Policy
from tests import closeness
from tests.random_nets import RandomNet

import mxnet as mx

LARGEST = 4096.0
POLICIES = ["float16", "bfloat16"]
FEW = 8  # networks of the suite; `slow` are all others


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
        amp.cast(net, "float32")
        net.hybridize(active=False)
        bounds = allowed[policy]
        if any(d > bounds[name] for name, d in distances.items()):
            dtype = Policy.parse(policy).compute_dtype
            bounds = closeness.bounds(net, [net.x], expected, dtype, closeness.MANY_CHANGES)
        far += [
            (policy, name, d, bounds[name]) for name, d in distances.items() if d > bounds[name]
        ]
    return far


def compare(seed):
    """Yield when the network works in float32, then what it is and `too_far` of it."""
    net = RandomNet(seed)  # not hybridized: graphs compute some gradients wrongly
    expected, allowed = float32_of(net)
    yield "works in float32"
    yield (net.shape, net.names), too_far(net, expected, allowed)


# ------------------------------------------------------------------------------------- the process


def answer(connection):
    """Receive seeds; send what the comparison yields, or why it cannot."""
    warnings.simplefilter("ignore")
    while True:
        seed = connection.recv()
        try:
            for result in compare(seed):
                connection.send(result)
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


def check(seed, answers):
    """Return whether a network that works in float32 is within the bounds of all policies."""
    answers.request(seed)
    float32 = answers.next()
    if float32 is None or isinstance(float32, UnusableError):
        return False  # stock MXNet crashes in float32
    cast = answers.next()
    assert cast is not None, "the cast network crashes"
    what, far = cast
    assert far == [], (seed, what)
    return True


@pytest.mark.parametrize("seed", range(FEW))
def test_a_random_net_gives_what_it_gives_in_float32(seed, answers):
    if not check(seed, answers):
        pytest.skip("it cannot test a policy")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_nets(answers, request):
    first = request.config.getoption("--random-nets-seed") * 1000
    count = request.config.getoption("--random-nets")
    seeds = range(first, first + count)
    assert sum(check(seed, answers) for seed in seeds) > count / 2
