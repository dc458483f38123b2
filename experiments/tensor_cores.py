"""Compare the emulation of float16 with real Tensor Cores, bit by bit.

There are three steps. They may run on three machines, as MXNet does not run on recent GPUs:

  python -m experiments.tensor_cores --export DIR    needs gluon_amp; writes inputs and outputs
  python -m experiments.tensor_cores --gpu DIR       needs PyTorch and a GPU; writes its outputs
  python -m experiments.tensor_cores --compare DIR   needs numpy; prints the table

Copy NAME.inputs.npz (28 MB) to the machine with the GPU, and NAME.gpu.npy (27 MB) back.
"""

import argparse
import sys
from pathlib import Path
from typing import Dict, Iterator, Optional, Sequence, Tuple

import numpy as np

from experiments.pages import table
from experiments.standalone import command_line

UsageError = command_line.UsageError


# Matrix products (rows, depth) × (columns, depth), and a ResNet's three kinds of convolution: the
# shapes of data and weight, stride and padding
SHAPES = {
    "matmul-64": ((768, 64), (768, 64), 1, 0),
    "matmul-576": ((768, 576), (768, 576), 1, 0),
    "matmul-1024": ((768, 1024), (768, 1024), 1, 0),
    "conv-7x7": ((8, 3, 80, 80), (64, 3, 7, 7), 2, 3),
    "conv-3x3": ((8, 64, 28, 28), (64, 64, 3, 3), 1, 1),
    "conv-1x1": ((8, 256, 14, 14), (256, 256, 1, 1), 1, 0),
}


DISTRIBUTIONS = {
    "normal": lambda random, shape: random.normal(0, 1, shape),
    # so small that outputs and some inputs are subnormal
    "gradients": lambda random, shape: random.normal(0, 2.0**-9, shape),
    # with exponents from -12 to 3, so that the terms of a sum differ in size
    "wide": lambda random, s: random.choice([-1, 1], s) * 2.0 ** random.uniform(-12, 4, s),
    # so large that many outputs exceed 65504
    "large": lambda random, shape: random.normal(0, 200, shape),
}


def cases() -> Iterator[Tuple[str, Dict[str, np.ndarray]]]:
    """Yield the name and the inputs of each case, the same on every machine."""
    for i, (name, (data_shape, weight_shape, stride, pad)) in enumerate(SHAPES.items()):
        for j, (kind, draw) in enumerate(DISTRIBUTIONS.items()):
            random = np.random.RandomState(100 * i + j)
            # weights of a trained network are about the size of 1 / sqrt(depth)
            depth = np.sqrt(np.prod(weight_shape[1:]))
            data = draw(random, data_shape).astype(np.float16)
            weight = (draw(random, weight_shape) / depth).astype(np.float16)
            inputs = {"data": data, "weight": weight, "stride": stride, "pad": pad}
            yield f"{name}-{kind}", inputs


def export(folder: Path) -> None:
    """Write the inputs of each case, the emulated outputs, and the exact ones.

    The exact ones are the float64 results rounded once. No float32 sum is more accurate.
    """
    import gluon_amp as amp
    from gluon_amp.lowering import lower
    from gluon_amp.policy import cast_pass

    import mxnet as mx

    dtypes = {"data": "float16", "weight": "float16"}
    policy = amp.Policy("float16", "float16", "float16")
    folder.mkdir(parents=True, exist_ok=True)
    for name, inputs in cases():
        symbol = _symbol(mx, **inputs)
        lowered = lower(cast_pass.apply(symbol, policy, dtypes), dtypes, "cpu")
        arrays = [mx.nd.array(inputs[key], dtype="float16") for key in dtypes]
        np.save(folder / f"{name}.ours.npy", mx.nd.CachedOp(lowered)(*arrays).asnumpy())
        wide = mx.nd.CachedOp(symbol)(*(each.astype("float64") for each in arrays)).asnumpy()
        with np.errstate(over="ignore"):
            np.save(folder / f"{name}.exact.npy", wide.astype(np.float16))
        np.savez(folder / f"{name}.inputs.npz", **inputs)


def _symbol(mx, data: np.ndarray, weight: np.ndarray, stride: int, pad: int):
    inputs, options = map(mx.sym.var, ("data", "weight")), {"no_bias": True}
    if weight.ndim == 2:
        return mx.sym.FullyConnected(*inputs, num_hidden=len(weight), **options)
    window = {"kernel": weight.shape[2:], "stride": (stride, stride), "pad": (pad, pad)}
    return mx.sym.Convolution(*inputs, num_filter=len(weight), **window, **options)


def run_on_gpu(folder: Path) -> None:
    """Write PyTorch's outputs on the GPU for each case.

    Partial sums are added in float32 (`allow_fp16_reduced_precision_reduction` is off), as in the
    kernels that MXNet uses.
    """
    try:
        import torch
    except ImportError:
        raise UsageError("--gpu needs PyTorch: install it on the machine with the GPU.") from None
    files = _files(folder, "inputs.npz")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (7, 0):
        raise UsageError("--gpu needs an NVIDIA GPU with Tensor Cores, capability 7.0 or higher.")
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    for file in files:
        with np.load(file) as loaded:
            data, weight = (torch.from_numpy(loaded[key]).cuda() for key in ("data", "weight"))
            stride, pad = int(loaded["stride"]), int(loaded["pad"])
        if weight.dim() == 2:
            out = torch.matmul(data, weight.T)
        else:
            out = torch.nn.functional.conv2d(data, weight, stride=stride, padding=pad)
        np.save(_beside(file, "gpu.npy"), out.cpu().numpy())
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}")


def compare(a: np.ndarray, b: np.ndarray) -> Tuple[int, int, int]:
    """Compare two float16 arrays bit by bit; return three numbers.

    The first is how many have the same bits; all NaNs count as the same. The second is the largest
    difference in units in the last place; infinity is one above 65504. The third is how many are
    NaN in one array only, which do not count for the second.
    """
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    same = (a.view(np.uint16) == b.view(np.uint16)) | (nan_a & nan_b)
    distance = np.abs(_ordinal(a) - _ordinal(b))[~(nan_a | nan_b)]
    return int(same.sum()), int(distance.max(initial=0)), int((nan_a ^ nan_b).sum())


def _ordinal(x: np.ndarray) -> np.ndarray:
    """Return integers in the order of the float16 values; neighbours differ by 1, zeros are 0."""
    bits = x.view(np.uint16).astype(np.int32)
    return np.where(bits & 0x8000, -(bits & 0x7FFF), bits)


def report(folder: Path) -> str:
    """Return a table with a line for each case.

    *ours* and *GPU* are the shares of outputs that equal the exact ones.
    """
    rows = []
    for file in _files(folder, "ours.npy"):
        if not _beside(file, "gpu.npy").exists():
            raise UsageError(f"{folder} has no {_beside(file, 'gpu.npy').name}: run --gpu.")
        ours, gpu, exact = (np.load(_beside(file, f"{k}.npy")) for k in ("ours", "gpu", "exact"))
        identical, ulps, one_nan = compare(ours, gpu)
        shares = (identical, compare(ours, exact)[0], compare(gpu, exact)[0])
        same, *near = (f"{share / ours.size:.4%}" for share in shares)
        rows.append([file.name[:-9], f"{ours.size}", same, f"{ulps}", f"{one_nan}", *near])
    return table(["case", "outputs", "identical", "ulps", "one NaN", "ours", "GPU"], rows)


def _files(folder: Path, suffix: str) -> Sequence[Path]:
    files = sorted(folder.glob(f"*.{suffix}"))
    if not files:
        raise UsageError(f"{folder} has no *.{suffix}: run --export and copy its files there.")
    return files


def _beside(file: Path, suffix: str) -> Path:
    return file.with_name(f"{file.name.split('.')[0]}.{suffix}")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run one of the three steps; return the status of the process."""
    parser = command_line.Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_mutually_exclusive_group(required=True)
    work = {"export": export, "gpu": run_on_gpu, "compare": lambda folder: print(report(folder))}
    for name in work:
        steps.add_argument(f"--{name}", type=command_line.path, metavar="DIR")
    options = vars(parser.parse_args(arguments))
    ((name, folder),) = ((name, path) for name, path in options.items() if path)
    return command_line.status_of("tensor_cores.py", lambda: work[name](folder))


if __name__ == "__main__":
    sys.exit(main())
