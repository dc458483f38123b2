"""`convert`: a symbol that computes as a policy says."""

from typing import Dict, Iterable, Set, Union

from gluon_amp import graph
from gluon_amp.base.messages import did_you_mean
from gluon_amp.lowering import in_place
from gluon_amp.policy import Policy, bfloat16_kernels, cast_pass

import mxnet as mx

# What the names of parameters end with; an error lists the other arguments as possible inputs.
PARAMETER_ENDINGS = ("_weight", "_bias", "_gamma", "_beta")


def convert(
    symbol: mx.sym.Symbol,
    policy: Union[str, Policy] = "float16",
    data_names: Iterable[str] = ("data",),
    label_names: Iterable[str] = ("softmax_label",),
) -> mx.sym.Symbol:
    """Return a symbol that computes as a policy says, for a device with that dtype's kernels.

    Parameters
    ----------
    symbol : Symbol
        A network or several outputs grouped, with or without loss heads. It is not changed.
    policy : str or Policy
        As for `gluon_amp.cast`. `'float32'` changes nothing.
    data_names, label_names : list of str
        The inputs; all other variables are parameters. Label names that the symbol does not have
        are ignored, so that a symbol for inference needs no other arguments.

    Returns
    -------
    Symbol
        Same arguments, auxiliary states and outputs, under the same names. Parameters that only
        matrix products read are declared in the policy's `param_dtype`, so that binding allocates
        them in it. All others, BatchNorm's running statistics too, are declared in float32. Loss
        heads compute in float32, and outputs are float32. PReLU and hard_sigmoid are written with
        other operators, as MXNet computes gradients wrongly with them in a graph. Recurrent layers
        and deconvolutions compute in float32 under `bfloat16`, for which MXNet has no kernels of
        them. `Module` has them, and runs float16 on a CPU, as it lowers the graph for its device.

    Raises
    ------
    ValueError
        Unknown policy, one that studies formats, for which MXNet has no kernels, a data name
        that the symbol does not have (near matches are listed), or a block pattern that matches no
        node.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = mx.sym.FullyConnected(mx.sym.var('data'), num_hidden=2, name='fc')
    >>> cast = amp.symbolic.convert(net, 'float16')
    >>> [dtype.__name__ for dtype in cast.infer_type(data='float32')[0]]  # data, weight, bias
    ['float32', 'float16', 'float16']
    """
    policy = Policy.parse(policy)
    if policy.studies:
        raise ValueError(
            f"convert() got the policy {policy.name!r}, for which MXNet has no kernels: use "
            "amp.symbolic.Module(symbol, policy=...), which emulates it."
        )
    if policy.compute_dtype == "bfloat16":
        policy = policy.pin(ops=bfloat16_kernels.OURS)
    cast = cast_symbol(symbol, policy, data_names, label_names)
    if policy.is_float32:
        return cast
    safe = in_place.avoid_faults_in(graph.to_json(cast))
    return graph.from_json(_with_output_names(safe, symbol), like=cast)


def _with_output_names(cast: dict, symbol: mx.sym.Symbol) -> dict:
    """Return a cast graph whose outputs have the names that they have in the symbol.

    MXNet names an output after its node, such as fc_output or split_output1. So the cast of an
    output gets the name of the node, and the node another one, unless it has outputs that are not
    cast. Numbered outputs are those of an `amp_multicast`. Others are left as they are: variables,
    and names of an operator's own, such as norm_mean.
    """
    old, nodes, heads = graph.to_json(symbol), list(cast["nodes"]), list(cast["heads"])
    named: Dict[str, list] = {}  # casts by the new name of their node
    numbered: Dict[str, Dict[int, list]] = {}  # and by that name and their number
    for k, (name, (source, *_)) in enumerate(zip(symbol.list_outputs(), old["heads"])):
        node, head = old["nodes"][source], nodes[heads[k][0]]
        stem, _, number = name.rpartition("_output")
        if head["name"] == node["name"]:
            continue  # it is not cast
        if node["op"] == "null" or not stem:
            heads[k] = head["inputs"][0]
        elif number:
            numbered.setdefault(stem, {})[int(number)] = heads[k]
        else:
            named[stem] = heads[k]
    outputs = {head[0] for head in heads}
    for i, node in enumerate(nodes):
        if node["op"] != "null" and node["name"] in {*named, *numbered} and i not in outputs:
            nodes[i] = {**node, "name": f"{node['name']}_uncast"}
    for stem, (i, *_) in named.items():
        nodes[i] = {**nodes[i], "name": stem}
    replaced: Dict[int, list] = {}
    for stem, casts in numbered.items():
        inputs = [casts.get(k, max(casts.values())) for k in range(max(2, max(casts) + 1))]
        replaced.update((cast[0], [len(nodes), k, 0]) for k, cast in casts.items())
        attrs = {"num_outputs": str(len(inputs))}
        nodes.append({"op": "amp_multicast", "name": stem, "attrs": attrs, "inputs": inputs})
    return {**cast, "nodes": nodes, "heads": [replaced.get(head[0], head) for head in heads]}


def cast_symbol(
    symbol: mx.sym.Symbol, policy: Policy, data_names: Iterable[str], label_names: Iterable[str]
) -> mx.sym.Symbol:
    """Return what `convert` returns, under any policy."""
    inputs = _input_names(symbol, data_names, label_names)
    policy.check_blocks((None, node["name"]) for node in graph.to_json(symbol)["nodes"])
    if policy.is_float32:
        return cast_pass.apply(symbol, policy, {})
    return cast_pass.apply(symbol, policy, cast_pass.parameter_dtypes(symbol, policy, inputs))


def _input_names(symbol, data_names, label_names) -> Set[str]:
    """Check the names of the inputs and return them together."""
    for names in (data_names, label_names):
        if isinstance(names, str):
            raise ValueError(f"Input names are a list, received the string {names!r}: [{names!r}].")
    arguments = symbol.list_arguments()
    for name in data_names:
        if name not in arguments:
            candidates = [a for a in arguments if not a.endswith(PARAMETER_ENDINGS)]
            raise ValueError(
                f"The symbol has no input {name!r}{did_you_mean(name, arguments)}: pass "
                f"data_names, probably of {', '.join(candidates)}."
            )
    return {*data_names, *label_names}
