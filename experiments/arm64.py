"""Train the README's network on Linux arm64, which qemu emulates, without C++ kernels.

    make arm64

MXNet's wheel needs three libraries of Arm, which no package index has. Others stand in for them:
OpenBLAS, glibc's libm, and LAPACKE. So this shows that gluon_amp runs there, and says nothing of
Arm's libraries or of speed. The first run makes a Debian 12 with MXNet.

The loss scale begins where the README's ends. From a higher one, the first step is skipped:
gluon_amp repeats no pass there, as `graph/tape.py` does not find the recorded graph in that build.
"""

import re
from shlex import quote
from typing import Optional, Sequence

from experiments import ROOT, debian
from gluon_amp.base.startup.supported import ARM
from gluon_amp.training.command_line import Parser, status_of

PACKAGES = ("libgomp1", "liblapacke", "libopenblas0-pthread", "python3-venv")
STAND_INS = ("openblas-pthread/libopenblas.so.0", "libm.so.6", "liblapacke.so.3")
COPIES = [f"cp -L /lib/aarch64-linux-gnu/{a} /opt/arm/{b}" for a, b in zip(STAND_INS, ARM)]
INSTALL = (
    "test -e /opt/mxnet/installed || (python3 -m venv --clear /opt/mxnet"
    " && /opt/mxnet/bin/pip install -q -c constraints.txt mxnet && touch /opt/mxnet/installed)"
)
PYTHON = "/opt/mxnet/bin/python -BW ignore -c"
SCALE = '"sgd", {"learning_rate": 0.0003}, loss_scale=amp.DynamicLossScale(init_scale=128)'


def program(dtype: str) -> str:
    """Return the README's example, up to its last step, in a dtype."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)\nprint\(amp\.diagnose", text, re.DOTALL)[1]
    example = re.sub(r'"sgd", \{.*?\}', SCALE, example)
    return example.replace('"float16"', f'"{dtype}"').replace(":.2f", ":.4f")


def train() -> int:
    """Check the sentence for the missing libraries, then train; return 0 if they agree."""
    system = debian.system("bookworm", "arm64", PACKAGES)
    sentence = f"LD_LIBRARY_PATH= {PYTHON} 'import gluon_amp' 2>&1 | grep 'needs {ARM[0]}'"
    steps = {
        "install": INSTALL,
        "without the libraries": sentence,
        "with others in their place": " && ".join(["mkdir -p /opt/arm", *COPIES]),
        **{dtype: f"{PYTHON} {quote(program(dtype))}" for dtype in ("float32", "float16")},
    }
    losses = []
    with debian.bound(system, str(ROOT)):
        for name, command in steps.items():
            variables = {"GLUON_AMP_NATIVE": "0", "LD_LIBRARY_PATH": "/opt/arm"}
            printed = debian.run(system, f"cd '{ROOT}' && {command}", name, **variables)
            losses.append([float(loss) for loss in re.findall(r"loss ([\d.]+)$", printed, re.M)])
    near = [abs(a - b) < 0.1 * a for a, b in zip(*losses[-2:])]
    return 0 if near == [True] * 4 else 1


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run it; return the exit status."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.parse_args(arguments)
    return status_of(parser.prog, train)


if __name__ == "__main__":
    raise SystemExit(main())
