"""The lowered graphs of networks, and what `describe` and `check` say of them."""

import json
import warnings
from functools import partial
from typing import Any, Callable, Iterator, List, Tuple
from unittest import mock

from experiments.unchanged.outcome import amp, array_text, mx
from experiments.zoo_coverage import all_networks, pixels_of, untrained
from tests.random_nets import RandomNet

STUDY = "compute=float8_e4m3,gradients=float8_e5m2"
POLICIES = ("float16", "mixed_float16", "bfloat16", "compute=fused_float32", STUDY)
GLUONCV = """cv/cifar_resnet20_v1 cv/mobilenetv3_small cv/resnest14 cv/se_resnext50_32x4d
cv/shufflenet_v2 cv/simple_pose_resnet18_v1b cv/center_net_mobilenetv3_small_duc_voc""".split()
MODULES = ("mx/resnet18_v1", "mx/mobilenetv2_0.25", "mx/squeezenet1.1")
RANDOM = 300  # random nets
CHECKED = 5  # `check` examines every fifth network

Cases = Iterator[Tuple[str, Callable[[], str]]]
Made = Tuple[mx.gluon.Block, mx.nd.NDArray]
Make = Callable[[], Made]


def networks() -> Iterator[Tuple[str, Make]]:
    """Yield a name and a function that returns an initialized network and its input."""
    for name in [*(name for name in all_networks() if name.startswith("mx/")), *GLUONCV]:
        yield name, partial(of_zoo, name)
    for seed in range(RANDOM):
        yield f"random {seed}", partial(of_seed, seed)


def of_zoo(name: str) -> Made:
    """Return a network of a model zoo with random weights, and one small image."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = untrained(name)
    net.initialize()
    return net, mx.nd.random.normal(shape=(1, 3, pixels_of(name), pixels_of(name)))


def of_seed(seed: int) -> Made:
    """Return a random net and its data."""
    net = RandomNet(seed)
    return net, net.x


def graphs() -> Cases:
    """Yield the graphs of each network and policy; some are a Module's, too."""
    for name, make in networks():
        for policy in POLICIES:
            yield f"{name} {policy}", partial(gluon_graphs, make, policy)
            if name in MODULES:
                yield f"{name} {policy} converted", partial(converted_graph, make, policy)
                yield f"{name} {policy} in a Module", partial(module_graph, make, policy)


def gluon_graphs(make: Make, policy: str) -> str:
    """Return the graphs and outputs of inference and of training.

    Gluon makes a cached operator of each graph that really runs, by its name in MXNet.
    """
    net, x = make()
    net.hybridize()
    amp.cast(net, policy)
    parts: List[str] = []
    original = mx.nd.CachedOp

    def cached_operator(symbol: mx.sym.Symbol, *arguments: Any) -> Any:
        parts.append(graph_text(symbol))
        return original(symbol, *arguments)

    for training in (False, True):
        parts.append("training:" if training else "inference:")
        mode = mx.autograd.record() if training else mx.autograd.predict_mode()
        with mock.patch.object(mx.nd, "CachedOp", cached_operator), mode:
            outputs = net(x)
        arrays = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        parts += [array_text("output", each) for each in arrays if hasattr(each, "asnumpy")]
    return "\n".join(parts)


def converted_graph(make: Make, policy: str) -> str:
    """Return the symbol that `convert` returns."""
    return graph_text(amp.symbolic.convert(classifier(make()[0]), policy))


def module_graph(make: Make, policy: str) -> str:
    """Return the graph of a Module's executor in training."""
    net, x = make()
    module = amp.symbolic.Module(classifier(net), policy=policy)
    module.bind([("data", x.shape)], [("softmax_label", (x.shape[0],))])
    module.init_params(mx.init.Zero())
    return graph_text(vars(module.executors[0])["_symbol"])


def classifier(net: mx.gluon.Block) -> mx.sym.Symbol:
    """Return a network with Module's loss head."""
    return mx.sym.SoftmaxOutput(net(mx.sym.var("data")), name="softmax")


def graph_text(symbol: mx.sym.Symbol) -> str:
    """Return a symbol's JSON with a line for each node, in the order of MXNet."""
    graph = json.loads(symbol.tojson(remove_amp_cast=False))
    return "\n".join(json.dumps(part, sort_keys=True) for part in (*graph["nodes"], graph["heads"]))


def describes() -> Cases:
    """Yield the table of each network and policy, and the findings of some."""
    for number, (name, make) in enumerate(networks()):
        for policy in POLICIES:
            yield f"{name} {policy}", partial(described, make, policy, number % CHECKED == 0)


def described(make: Make, policy: str, checked: bool) -> str:
    """Return the table and its rows, and the findings."""
    net, x = make()
    amp.cast(net, policy)
    table = amp.describe(net, x)
    parts = [str(table), *map(repr, table.rows)]
    if checked:
        trainer = amp.Trainer(net.collect_params(), "adam", {"epsilon": 1e-8})
        parts += map(repr, amp.check(net, trainer, x))
    return "\n".join(parts)
