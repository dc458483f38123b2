"""Train the README's network on Linux arm64, which qemu emulates, without C++ kernels.

    make arm64

MXNet's wheel needs three libraries of Arm, which no package index has. Others stand in for them:
OpenBLAS, glibc's libm, and LAPACKE. So this shows that gluon_amp runs there, and says nothing of
Arm's libraries or of speed. The first run makes a Debian 12 with MXNet in `.debian`.

The loss scale begins where the README's ends. Higher, the first step would be skipped: MXNet's
build for arm64 keeps its graphs in another layout, of which gluon_amp can repeat no pass.
"""

import time
from typing import Optional, Sequence

from experiments import ROOT, debian
from experiments.standalone import command_line
from gluon_amp.base.startup.supported import ARM

PACKAGES = ("libgomp1", "liblapacke", "libopenblas0-pthread", "python3-venv")
LIBRARIES = "/usr/lib/aarch64-linux-gnu"
STAND_INS = ("openblas-pthread/libopenblas.so.0", "libm.so.6", "liblapacke.so.3")
INSTALL = (
    "test -e /opt/mxnet/installed || (python3 -m venv --clear /opt/mxnet"
    " && /opt/mxnet/bin/pip install -q -c constraints.txt mxnet && touch /opt/mxnet/installed)"
)
PYTHON = "GLUON_AMP_NATIVE=0 PYTHONDONTWRITEBYTECODE=1 /opt/mxnet/bin/python -W ignore"

# The README's example in two dtypes
PROGRAM = """
import gluon_amp as amp
import mxnet as mx

losses = {}
for dtype in ("float32", "float16"):
    mx.random.seed(0)
    data, label = mx.nd.random.normal(shape=(16, 3, 32, 32)), mx.nd.arange(16) % 10
    net = mx.gluon.model_zoo.vision.resnet18_v1(classes=10)
    net.initialize()
    loss_fn = mx.gluon.loss.SoftmaxCELoss()
    amp.cast(net, dtype)
    scale = amp.DynamicLossScale(init_scale=128) if dtype == "float16" else None
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0003}, loss_scale=scale)
    losses[dtype] = []
    for step in range(3):
        with mx.autograd.record():
            loss = loss_fn(net(data), label)
        trainer.backward(loss)
        trainer.step(batch_size=16)
        losses[dtype].append(round(float(loss.mean().asscalar()), 4))
    print(dtype, losses[dtype], flush=True)
assert all(abs(a - b) < 0.1 * a for a, b in zip(*losses.values())), "the losses differ"
assert losses["float16"][-1] < 0.5 * losses["float16"][0], "the loss does not fall"
"""


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Check the sentence for the missing libraries, then train; return 0 if both are right."""
    command_line.Parser(description=__doc__.splitlines()[0]).parse_args(arguments)
    system = debian.system("bookworm", "arm64", PACKAGES)
    copies = " && ".join(
        f"cp -L {LIBRARIES}/{source} /opt/arm/{name}" for source, name in zip(STAND_INS, ARM)
    )
    commands = [
        ("install", INSTALL, ""),
        ("the sentence", f"{PYTHON} -c 'import gluon_amp' 2>&1 | grep {ARM[-1]}", ""),
        ("stand-ins", f"mkdir -p /opt/arm && {copies}", ""),
        ("train", f'{PYTHON} -c "$PROGRAM"', "/opt/arm"),
    ]
    with debian.bound(system, str(ROOT)):
        for name, command, folder in commands:
            start = time.perf_counter()
            variables = {"PROGRAM": PROGRAM, "LD_LIBRARY_PATH": folder}
            done = debian.run(system, f"cd '{ROOT}' && {command}", **variables)
            seconds = time.perf_counter() - start
            print(f"== {name}: {seconds:.0f} s\n{done.stdout}", end="", flush=True)
            if done.returncode:
                return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
