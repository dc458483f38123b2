"""What costs a net speed or accuracy in float16, found before the training.

`dimensions` looks at sizes that Tensor Cores do not like, `gpu_graph` at kernels, `indices` at
whole numbers that are not exact, and `trainer_findings` at the trainer.
"""

from typing import Iterator, List, Optional

from gluon_amp.base.dtypes import dtype_name
from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.parameters import dtype_of
from gluon_amp.casting.tracing import named_blocks, roots
from gluon_amp.inspection.dimensions import dimension_findings
from gluon_amp.inspection.findings import Finding, Findings
from gluon_amp.inspection.gpu_graph import gpu_findings
from gluon_amp.inspection.indices import index_findings
from gluon_amp.inspection.operators import graphs, operators, run
from gluon_amp.inspection.trainer_findings import trainer_findings

from mxnet import gluon, nd
from mxnet.gluon import nn

# Gluon's norm layers whose parameters net.cast('float16') casts too. BatchNorm's parameters and
# statistics stay float32.
NORM_LAYERS = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm)


def check(
    net: gluon.Block, trainer: Optional[gluon.Trainer] = None, *inputs: nd.NDArray
) -> Findings:
    """Return what makes a net slow or inexact in float16, and how to fix it.

    Of the net: dimensions of float16 matrix products and convolutions that are no multiples of 8,
    as Tensor Cores need them (depthwise convolutions aside: they are no matrix products); `dot`,
    whose kernel does not use them; operators in float16 without a float16 kernel on a GPU; ids,
    indices and lengths that are float16 and may be above 2048; a float16 output, which reaches the
    loss; norm layers with float16 parameters. Of the trainer: an epsilon that is 0 in float16;
    updates on the kvstore; frozen parameters.

    Parameters
    ----------
    net : Block
        Cast by `amp.cast`, or by MXNet's own `net.cast('float16')`.
    trainer : gluon.Trainer, optional
        The trainer of the net's parameters; without one, only the net is checked.
    inputs : NDArray
        Inputs as for `net(*inputs)`; their first dimension is the batch. A net that has run before
        needs none, but without inputs the batch is not checked.

    Returns
    -------
    list of Finding
        In the order of the graph, then those of the trainer; empty without any.

    Raises
    ------
    ValueError
        Called without inputs on a net that has never run.
    TypeError
        The second argument is no trainer.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(1001, in_units=64), 'float16')
    >>> net.initialize()
    >>> print(amp.check(net, None, mx.nd.ones((8, 64))))
    net: FullyConnected gives 1001 outputs, which is not a multiple of 8 for Tensor
      Cores: make them 1008, and use no label for the 7 others.
    """
    if not isinstance(trainer, (gluon.Trainer, type(None))):
        raise TypeError(
            f"check() got a {type(trainer).__name__} as its trainer, expected a gluon.Trainer or "
            "None: call check(net, trainer, x) or check(net, None, x)."
        )
    outputs, arguments = run("check", net, inputs)
    findings = Findings()
    written = set()  # by operators: running statistics
    for traced in graphs("check", net, arguments):
        if traced.symbol is not None:
            written.update(traced.symbol.list_auxiliary_states())
            found = operators(traced)
            findings += dimension_findings(found)
            findings += gpu_findings(traced.path, traced.block)
            findings += index_findings(found)
    findings += [*_loss_head(net, outputs), *_norms(net)]
    if trainer is not None:
        findings += trainer_findings(net, trainer, written)
    return findings


def _loss_head(net: gluon.Block, outputs: List[nd.NDArray]) -> Iterator[Finding]:
    """Look at the outputs, or without any at the policy."""
    dtypes = [dtype_name(output.dtype) for output in outputs]
    if not outputs:
        bindings = (binding_of(block) for _, block in roots(net))
        dtypes = [binding.policy.output_dtype for binding in bindings if binding is not None]
    if "float16" in dtypes:
        problem = "its output is float16, in which a loss and its scale overflow past 65504"
        fix = "leave output=float16 out of the policy, or give the loss out.astype('float32')"
        yield Finding("loss_head", "", problem, fix)


def _norms(net: gluon.Block) -> Iterator[Finding]:
    fix = "use amp.cast in place of net.cast('float16'), or block.cast('float32')"
    for path, block in named_blocks(net):
        dtypes = map(dtype_of, block.collect_params().values())
        if isinstance(block, NORM_LAYERS) and "float16" in dtypes:
            layer = type(block).__name__
            problem = f"{layer} has float16 parameters, whose small updates are lost"
            yield Finding("norm", path, problem, fix)
