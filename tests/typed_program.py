"""The public names as a user's program has them, for mypy; it refuses the lines with `ignore`."""

from typing import Any, Dict, List, Optional

import gluon_amp as amp

import mxnet as mx
from mxnet import gluon, nd


def train(net: gluon.HybridBlock, loss_fn: gluon.loss.Loss, data: nd.NDArray) -> List[float]:
    policy: amp.Policy = amp.Policy("float16").pin(ops=["tanh"], blocks=["head"])
    amp.cast(net, policy)
    amp.cast(net, 16)  # type: ignore[arg-type]
    scale = amp.DynamicLossScale(growth_interval=100)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, loss_scale=scale)
    amp.Trainer(net.collect_params(), "sgd", los_scale=8)  # type: ignore[arg-type]
    trainer.backward([loss_fn(net(data), data)], accumulate=True)
    norm: float = trainer.clip_global_norm(1.0, 1)
    report: amp.StepReport = trainer.step(32)
    report.applied = True  # type: ignore[misc]
    with amp.EMA(net, trainer, decay=0.99).applied():
        amp.save_checkpoint("net.ckpt", net, trainer, keep=2, epoch=1)
    extra: Dict[str, Any] = amp.load_checkpoint("net.ckpt", net, trainer)
    return [norm, report.next_loss_scale, scale.min_scale, extra["epoch"]]


def with_contrib_amp(net: gluon.HybridBlock, trainer: gluon.Trainer, x: nd.NDArray) -> nd.NDArray:
    amp.init_trainer(trainer, loss_scale="dynamic", max_consecutive_skips=5)
    with amp.scale_loss(net(x), trainer) as scaled:
        mx.autograd.backward(scaled)
    amp.unscale(trainer)
    return amp.input_gradient(net, x)


def understand(net: gluon.HybridBlock, trainer: gluon.Trainer, x: nd.NDArray) -> Optional[str]:
    amp.watch(net, trainer, every=10).close()
    pinned: amp.Policy = amp.suggest_policy(net, gluon.loss.L2Loss(), x, x)
    words: List[str] = [finding.fix for finding in amp.check(net, trainer, x)]
    words += [row.op for row in amp.describe(net, x).rows]
    words += [pinned.why("exp"), amp.accumulation_dtype("cpu")["Convolution"], amp.bits(1).exponent]
    scale: Optional[float] = amp.gradient_report(net, trainer).recommended_scale
    print(scale, amp.float_table().rows[0].largest, amp.doctor(policy="float16").ok)
    amp.descrbe(net)  # type: ignore[attr-defined]
    return amp.diagnose(net, gluon.loss.L2Loss(), x, x).block


def leave(net: gluon.HybridBlock, module: Any, x: nd.NDArray) -> str:
    amp.torch_state_dict(net, module, x)
    return str(amp.export_onnx(net, "net.onnx", x, policy="float16"))


def module_twin(symbol: mx.sym.Symbol) -> amp.symbolic.Module:
    sgd: mx.optimizer.Optimizer = amp.optimizer.create("sgd", momentum=0.9)
    module = amp.symbolic.Module(amp.symbolic.convert(symbol, "float16"), loss_scale=128)
    module.init_optimizer(optimizer=sgd)
    return module
