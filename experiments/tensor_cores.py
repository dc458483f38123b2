"""Compare the emulation of float16 with real Tensor Cores, bit by bit.

There are three steps. They may run on three machines, as MXNet does not run on recent GPUs:

  python -m experiments.tensor_cores --export DIR    needs gluon_amp; writes inputs and outputs
  python -m experiments.tensor_cores --gpu DIR       needs PyTorch and a GPU; writes its outputs
  python -m experiments.tensor_cores --compare DIR   needs numpy; writes the table

Copy NAME.inputs.npz (28 MB) to the machine with the GPU, and NAME.gpu.npy (27 MB) and gpu.json
back.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from experiments import ROOT
from experiments.standalone import command_line, hardware

UsageError = command_line.UsageError
RESULT = ROOT / "docs" / "results" / "tensor_cores.md"
GPU_FACTS, CPU_FACTS = "gpu.json", "cpu.json"
FIRST_TENSOR_CORES = (7, 0)


class Shape(NamedTuple):
    """A matrix product or a convolution: shapes of data and weight, stride and padding."""

    op: str
    data: Tuple[int, ...]
    weight: Tuple[int, ...]
    stride: int = 1
    pad: int = 0


# Matrix products (rows, depth) × (columns, depth), and a ResNet's three kinds of convolution.
SHAPES = {
    "matmul-64": Shape("matmul", (768, 64), (768, 64)),
    "matmul-576": Shape("matmul", (768, 576), (768, 576)),
    "matmul-1024": Shape("matmul", (768, 1024), (768, 1024)),
    "conv-7x7": Shape("conv2d", (8, 3, 80, 80), (64, 3, 7, 7), stride=2, pad=3),
    "conv-3x3": Shape("conv2d", (8, 64, 28, 28), (64, 64, 3, 3), pad=1),
    "conv-1x1": Shape("conv2d", (8, 256, 14, 14), (256, 256, 1, 1)),
}


def _wide(random, shape):
    """Return numbers with exponents from -12 to 3, so that the terms of a sum differ in size."""
    return random.choice([-1, 1], shape) * 2.0 ** random.uniform(-12, 4, shape)


DISTRIBUTIONS = {
    "normal": lambda random, shape: random.normal(0, 1, shape),
    # so small that outputs and some inputs are subnormal
    "gradients": lambda random, shape: random.normal(0, 2.0**-9, shape),
    "wide": _wide,
    # so large that many outputs exceed 65504
    "large": lambda random, shape: random.normal(0, 200, shape),
}


class Case(NamedTuple):
    """One shape with numbers of one distribution. The names of its files begin with its name."""

    name: str
    shape: Shape
    data: np.ndarray
    weight: np.ndarray


def cases(shapes: Dict[str, Shape] = SHAPES) -> Iterable[Case]:
    """Yield all cases, with the same numbers on every machine."""
    for i, (name, shape) in enumerate(shapes.items()):
        for j, (kind, draw) in enumerate(DISTRIBUTIONS.items()):
            random = np.random.RandomState(100 * i + j)
            # weights of a trained network are about the size of 1 / sqrt(depth)
            depth = np.sqrt(np.prod(shape.weight[1:]))
            data = draw(random, shape.data).astype(np.float16)
            weight = (draw(random, shape.weight) / depth).astype(np.float16)
            yield Case(f"{name}-{kind}", shape, data, weight)


# -------------------------------------------------------------------------------- export


def export(folder: Path, shapes: Dict[str, Shape] = SHAPES) -> int:
    """Write each case's inputs, emulated and exact outputs; return the number of outputs."""
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for case in cases(shapes):
        outputs, exact = emulated(case), rounded_once(case)
        operator = {name: getattr(case.shape, name) for name in ("op", "stride", "pad")}
        arrays = {"data": case.data, "weight": case.weight}
        np.savez(folder / f"{case.name}.inputs.npz", **arrays, **operator)
        np.save(folder / f"{case.name}.ours.npy", outputs)
        np.save(folder / f"{case.name}.exact.npy", exact)
        total += outputs.size
    (folder / CPU_FACTS).write_text(json.dumps({"cpu": hardware.cpu_name()}) + "\n")
    return total


def emulated(case: Case) -> np.ndarray:
    """Return the outputs of a cast graph on this CPU, in float16."""
    import gluon_amp as amp
    from gluon_amp.lowering import lower
    from gluon_amp.policy import cast_pass

    import mxnet as mx

    dtypes = {"data": "float16", "weight": "float16"}
    policy = amp.Policy("float16", "float16", "float16")
    lowered = lower(cast_pass.apply(_symbol(case), policy, dtypes), dtypes, "cpu")
    inputs = [mx.nd.array(getattr(case, name), dtype="float16") for name in lowered.list_inputs()]
    return mx.nd.CachedOp(lowered)(*inputs).asnumpy()


def rounded_once(case: Case) -> np.ndarray:
    """Return the float64 result rounded to float16. No float32 sum is more accurate."""
    import gluon_amp  # noqa: F401 (restores numpy's aliases for MXNet)

    import mxnet as mx

    run = mx.nd.CachedOp(_symbol(case))
    wide = run(*(mx.nd.array(x, dtype="float64") for x in (case.data, case.weight))).asnumpy()
    with np.errstate(over="ignore"):
        return wide.astype(np.float16)


def _symbol(case: Case):
    import mxnet as mx

    data, weight = mx.sym.var("data"), mx.sym.var("weight")
    shape, count = case.shape, case.shape.weight[0]
    if shape.op == "matmul":
        return mx.sym.FullyConnected(data, weight, num_hidden=count, no_bias=True)
    window = {"kernel": shape.weight[2:], "stride": (shape.stride,) * 2, "pad": (shape.pad,) * 2}
    return mx.sym.Convolution(data, weight, num_filter=count, no_bias=True, **window)


# ----------------------------------------------------------------------------------- GPU


def run_on_gpu(folder: Path) -> int:
    """Write PyTorch's outputs on the GPU for each case; return the number of cases.

    Partial sums are added in float32 (`allow_fp16_reduced_precision_reduction` is off), as in the
    kernels that MXNet uses.
    """
    try:
        import torch
    except ImportError:
        raise UsageError("--gpu needs PyTorch: install it on the machine with the GPU.") from None
    names = _names(folder, "inputs.npz")
    if not torch.cuda.is_available():
        raise UsageError("--gpu needs an NVIDIA GPU, but PyTorch finds none on this machine.")
    if torch.cuda.get_device_capability() < FIRST_TENSOR_CORES:
        name = torch.cuda.get_device_name()
        raise UsageError(
            f"{name} has no Tensor Cores: use a GPU of compute capability 7.0 or higher."
        )
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    for name in names:
        with np.load(folder / f"{name}.inputs.npz") as file:
            data, weight = (torch.from_numpy(file[key]).cuda() for key in ("data", "weight"))
            if str(file["op"]) == "matmul":
                out = torch.matmul(data, weight.T)
            else:
                stride, pad = int(file["stride"]), int(file["pad"])
                out = torch.nn.functional.conv2d(data, weight, stride=stride, padding=pad)
        np.save(folder / f"{name}.gpu.npy", out.cpu().numpy())
    facts = {
        "gpu": torch.cuda.get_device_name(),
        "capability": "{}.{}".format(*torch.cuda.get_device_capability()),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
    (folder / GPU_FACTS).write_text(json.dumps(facts, indent=2) + "\n")
    return len(names)


# ------------------------------------------------------------------------------- compare


class Comparison(NamedTuple):
    """How two arrays of float16 differ."""

    outputs: int
    identical: int  # outputs with the same bits; all NaNs count as the same
    ulps: int  # largest difference in units in the last place; infinity is one above 65504
    one_nan: int  # outputs that are NaN in one array only; they do not count for `ulps`

    @property
    def share(self) -> float:
        """Share of identical outputs."""
        return self.identical / self.outputs


def compare(a: np.ndarray, b: np.ndarray) -> Comparison:
    """Compare two float16 arrays of one shape bit by bit."""
    if a.dtype != np.float16 or b.dtype != np.float16 or a.shape != b.shape:
        raise ValueError(
            f"compare() got {a.dtype} {a.shape} and {b.dtype} {b.shape}, expected float16 arrays "
            "of one shape."
        )
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    both = nan_a & nan_b
    same = (a.view(np.uint16) == b.view(np.uint16)) | both
    distance = np.abs(_ordinal(a) - _ordinal(b))[~(nan_a | nan_b)]
    one_nan = int((nan_a ^ nan_b).sum())
    return Comparison(a.size, int(same.sum()), int(distance.max(initial=0)), one_nan)


def _ordinal(x: np.ndarray) -> np.ndarray:
    """Return integers in the order of the float16 values; neighbours differ by 1, zeros are 0."""
    bits = x.view(np.uint16).astype(np.int32)
    return np.where(bits & 0x8000, -(bits & 0x7FFF), bits)


def join(parts: List[Comparison]) -> Comparison:
    """Return one comparison for all parts."""
    outputs, identical, ulps, one_nan = zip(*parts)
    return Comparison(sum(outputs), sum(identical), max(ulps), sum(one_nan))


def compare_folder(folder: Path) -> List[Tuple[str, Comparison, Comparison, Comparison]]:
    """Compare each case: emulated with GPU, emulated with exact, GPU with exact outputs."""
    rows = []
    for name in _names(folder, "ours.npy"):
        if not (folder / f"{name}.gpu.npy").exists():
            raise UsageError(
                f"{folder} has no {name}.gpu.npy: run --gpu and copy its files to this folder."
            )
        ours, gpu, exact = (
            np.load(folder / f"{name}.{kind}.npy") for kind in ("ours", "gpu", "exact")
        )
        rows.append((name, compare(ours, gpu), compare(ours, exact), compare(gpu, exact)))
    return rows


def facts_of(folder: Path) -> dict:
    """Return the descriptions of the machines of the other two steps."""
    facts = {}
    for name, step in ((CPU_FACTS, "--export"), (GPU_FACTS, "--gpu")):
        if not (folder / name).exists():
            raise UsageError(
                f"{folder} has no {name}, which {step} writes: copy it to this folder."
            )
        try:
            facts.update(json.loads((folder / name).read_text()))
        except (ValueError, TypeError, RecursionError):
            raise UsageError(f"{folder / name} is damaged: run {step} again.") from None
    return facts


def report(rows, facts: dict) -> str:
    """Return the result as Markdown."""
    total = [join([row[k] for row in rows]) for k in (1, 2, 3)]
    width = max(len(row[0]) for row in rows)
    titles = f"{'outputs':>9} {'identical':>10} {'ulps':>5} {'NaN':>4} {'ours':>8} {'GPU':>8}"
    lines = [f"{'case':{width}} {titles}"]
    for name, ours_gpu, ours, gpu in [*rows, ("all", *total)]:
        lines.append(
            f"{name:{width}} {ours_gpu.outputs:9d} {ours_gpu.share:10.4%} {ours_gpu.ulps:5d} "
            f"{ours_gpu.one_nan:4d} {ours.share:8.3%} {gpu.share:8.3%}"
        )
    table = "\n".join(lines)
    return f"""# The emulation against Tensor Cores

PyTorch on a GPU and the emulation of float16 on a CPU have computed outputs from the same float16
inputs (`experiments/tensor_cores.py`). Of {total[0].outputs:,} outputs, {total[0].share:.4%} have
the same bits. The others differ by at most {total[0].ulps} units in the last place.

GPU: {facts["gpu"]} (capability {facts["capability"]}),
PyTorch {facts["torch"]}, CUDA {facts["cuda"]}, cuDNN {facts["cudnn"]}. CPU: {facts["cpu"]}.

- `identical`, `ulps`, `NaN`: emulation and GPU compared. Share of outputs with the same bits,
  largest difference in units in the last place (infinity is one unit above 65504), and number of
  outputs that are NaN in one of the two only. Large differences are those of sums that nearly
  cancel, whose last place is far below that of the terms.
- `ours`, `GPU`: share of outputs that equal the float64 result rounded once. No order of a float32
  sum is more accurate.
- `normal`: normal numbers; `gradients`: so small that outputs are subnormal; `wide`: exponents from
  -12 to 3, equally often; `large`: so large that many outputs exceed 65504. Weights are divided by
  the root of the depth of the sum. matmul-64 adds 64 products; conv-3x3 has 64 channels, conv-1x1
  has 256.

```
{table}
```
"""


def _names(folder: Path, suffix: str) -> List[str]:
    names = sorted(path.name[: -len(suffix) - 1] for path in folder.glob(f"*.{suffix}"))
    if not names:
        raise UsageError(
            f"{folder} has no *.{suffix}: run --export and copy its files to this folder."
        )
    return names


# ------------------------------------------------------------------------- command line


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run one of the three steps; return the status of the process."""
    parser = command_line.Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_mutually_exclusive_group(required=True)
    for flag, text in (
        ("--export", "write the inputs and the emulated outputs"),
        ("--gpu", "write the GPU's outputs"),
        ("--compare", "compare the outputs and write the table"),
    ):
        steps.add_argument(flag, type=command_line.path, metavar="DIR", help=text)
    parser.add_argument(
        "--output",
        type=command_line.path,
        default=RESULT,
        metavar="FILE",
        help="file for the table (default: docs/results/tensor_cores.md)",
    )
    options = parser.parse_args(arguments)
    return command_line.status_of("tensor_cores.py", lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Run the chosen step."""
    if options.export:
        print(f"{export(options.export):,} outputs written to {options.export}")
    elif options.gpu:
        print(f"{run_on_gpu(options.gpu)} cases computed in {options.gpu}")
    else:
        text = report(compare_folder(options.compare), facts_of(options.compare))
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text)
        print(text)


if __name__ == "__main__":
    sys.exit(main())
