"""Export networks to ONNX, in float32 and in float16, and write the table of docs/results/onnx.md.

A row is how far file and net differ and how far rounding alone reaches, or why there is no file.
Weights are random, and the statistics of norms those of the data. Each network runs in a process
of its own. A row ends with the place of its run in a list of machines, dates and versions.
"""

import argparse
import datetime
import json
import re
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

import gluon_amp as amp
from experiments import pages, zoo_coverage
from gluon_amp.training.command_line import Parser, path, status_of
from gluon_amp.training.networks.language_model import LanguageModel
from gluon_amp.training.tables.machine import describe_cpu, versions

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import nn

POLICIES = ("float32", "float16")
WORST = 5  # files of each policy on the page
LONGEST = 900  # seconds for a network
CROP = 96  # pixels: networks for segmentation are built for images of one size, by default 480
DATA = pages.DOCS / "results" / "onnx.json"


class Attention(gluon.HybridBlock):
    """Self-attention with heads, and the feed-forward layer behind it, norms first."""

    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.HybridSequential()
        self.norms.add(nn.LayerNorm(), nn.LayerNorm())
        self.qkv, self.out = nn.Dense(3 * units, flatten=False), nn.Dense(units, flatten=False)
        self.wide = nn.Dense(4 * units, flatten=False)
        self.narrow = nn.Dense(units, flatten=False)

    def hybrid_forward(self, F, x):
        parts = F.split(self.qkv(self.norms[0](x)), num_outputs=3, axis=2)
        q, k, v = (self._by_head(F, one) for one in parts)
        weights = F.softmax(F.contrib.div_sqrt_dim(F.batch_dot(q, k, transpose_b=True)))
        mixed = F.reshape(F.batch_dot(weights, v), (-1, self.heads, 0, 0), reverse=True)
        mixed = F.reshape(F.transpose(mixed, (0, 2, 1, 3)), (0, 0, -1))
        x = x + self.out(mixed)
        return x + self.narrow(F.LeakyReLU(self.wide(self.norms[1](x)), act_type="gelu"))

    def _by_head(self, F, x):
        x = F.transpose(F.reshape(x, (0, 0, self.heads, -1)), (0, 2, 1, 3))
        return F.reshape(x, (-3, 0, 0))


class Encoder(gluon.HybridBlock):
    """Token and position embeddings, attention layers, and a head."""

    def __init__(self, words: int, length: int, units: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, units)
        self.places = self.params.get("places", shape=(1, length, units))
        self.layers = nn.HybridSequential()
        self.layers.add(*[Attention(units, heads) for _ in range(layers)], nn.LayerNorm())
        self.head = nn.Dense(words, flatten=False)

    def hybrid_forward(self, F, x, places):
        return self.head(self.layers(F.broadcast_add(self.words(x), places)))


class UNet(gluon.HybridBlock):
    """Two levels down by convolutions, up again by transposed ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self._level(16), self._level(32)
        self.up, self.last = nn.Conv2DTranspose(16, 2, 2), self._level(16)
        self.pool, self.head = nn.MaxPool2D(), nn.Conv2D(3, 1)

    def _level(self, channels: int) -> nn.HybridSequential:
        level = nn.HybridSequential()
        for _ in range(2):
            level.add(nn.Conv2D(channels, 3, 1, 1), nn.BatchNorm(), nn.Activation("relu"))
        return level

    def hybrid_forward(self, F, x):
        first = self.first(x)
        up = self.up(self.second(self.pool(first)))
        return self.head(self.last(F.concat(first, up, dim=1)))


class Margin(gluon.HybridBlock):
    """ArcFace's head: cosines of normalized embeddings and normalized class weights."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.HybridSequential()
        for channels in (16, 32):
            self.body.add(nn.Conv2D(channels, 3, 2, 1), nn.BatchNorm(), nn.PReLU())
        self.body.add(nn.Dropout(0.4), nn.Dense(32), nn.BatchNorm(scale=False))
        self.weight = self.params.get("weight", shape=(10, 32))

    def hybrid_forward(self, F, x, weight):
        features = F.L2Normalization(self.body(x)) * 64
        directions = F.L2Normalization(weight)
        return F.FullyConnected(features, directions, no_bias=True, num_hidden=10)


class Operators(gluon.HybridBlock):
    """Operators that other exporters refuse or get wrong."""

    def hybrid_forward(self, F, x):
        up = F.UpSampling(x, scale=2, sample_type="nearest")  # mxnet 18214
        pooled = F.contrib.AdaptiveAvgPooling2D(up, output_size=(3, 5))  # gluon-cv 1601
        values, places = F.topk(F.flatten(pooled), k=4, ret_typ="both")  # gluon-cv 1645
        return F.contrib.BilinearResize2D(x, height=11, width=7), values, places


def images(pixels: int, count: int = 4) -> nd.NDArray:
    """Return random images of different brightness and contrast, as pooled layers see them."""
    shape = (count, 3, 1, 1)
    contrast, brightness = nd.random.uniform(0.5, 1.5, shape), nd.random.normal(shape=shape)
    noise = nd.random.normal(shape=(count, 3, pixels, pixels))
    return nd.broadcast_add(nd.broadcast_mul(noise, contrast), brightness)


def words(count: int, length: int) -> nd.NDArray:
    """Return two sequences of random words."""
    return nd.array(np.random.randint(0, count, (2, length)))


def _lstm() -> Tuple[gluon.HybridBlock, tuple, Sequence[Optional[int]]]:
    net = LanguageModel(80, "lstm", 32, 64, 2)
    return net, (words(80, 12), *net.begin(2, mx.cpu())), (0, 1, 1)


# Networks beside those of the zoos: net, inputs, axis of the batch
OTHERS: Dict[str, Callable[[], tuple]] = {
    "text/lstm": _lstm,
    "text/transformer": lambda: (
        LanguageModel(80, "transformer", 32, 64, 2, heads=4, length=32, tied=True),
        (words(80, 32),),
        0,
    ),
    "text/bert_base": lambda: (Encoder(3000, 64, 768, 12, 12), (words(3000, 64),), 0),
    "face/arcface": lambda: (Margin(), (images(56),), 0),
    "segmentation/unet": lambda: (UNet(), (images(64),), 0),
    "operators": lambda: (Operators(), (images(12),), 0),
}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Export the chosen networks; return the status of the process."""
    parser = Parser(prog="onnx_table", description=__doc__.split("\n")[0])
    add = parser.add_argument
    pattern = "regular expression, for example mx/resnet or text; the page keeps the other rows"
    add("--networks", type=zoo_coverage.regular_expression, default="", metavar="P", help=pattern)
    add("--output", type=path, metavar="DIR", help="write onnx.md and onnx.json there")
    add("--worker", metavar="NETWORK", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        print(json.dumps(run(options.worker)))
        return 0
    return status_of("onnx_table", lambda: measure(options.networks.search, options.output))


def measure(chosen: Callable[[str], object], output: Optional[Path]) -> None:
    """Export the chosen networks, print their rows, and write the page after each."""
    before = json.loads(DATA.read_text())
    rows, runs = {tuple(row[:2]): row for row in before["rows"]}, before["runs"]
    with_versions = f"{versions()}, onnxruntime {metadata.version('onnxruntime')}"
    run = f"{describe_cpu()} on {datetime.date.today().isoformat()}, with {with_versions}"
    runs += [] if run in runs else [run]
    for name in filter(chosen, all_networks()):
        for row in run_in_process(name):
            rows[row[0], row[1]] = [*row, runs.index(run)]
            print(line(row), flush=True)
        values = {"runs": runs, "rows": list(rows.values())}
        if output:
            pages.write(output / "onnx", "results/onnx.md", parts(values), values)


def all_networks() -> List[str]:
    """Return the names of all networks of the table."""
    return [*zoo_coverage.all_networks(), *OTHERS]


def parts(values: pages.Values) -> pages.Parts:
    """Return the parts of the page: the files nearest to their bound, and why some have none."""
    rows = values["rows"]
    names = list(dict.fromkeys(row[0] for row in rows))
    written = [row for row in rows if not row[5]]
    refused = [f"- {row[0]} in {row[1]}: {row[5]}" for row in rows if row[5]]
    lines = []
    for policy in POLICIES:
        ours = [row for row in written if row[1] == policy]
        for name, _, largest, allowed, *_ in sorted(ours, key=lambda row: -row[2] / row[3])[:WORST]:
            lines.append([name, policy, f"{largest:.0e}", f"{allowed:.0e}"])
    missing = [name for name in all_networks() if name not in names]
    measured = [f"{k}: {run}" for k, run in enumerate(values["runs"], 1)]
    return {
        "count": f"{len(written)} of {len(rows)} files of {len(names)} networks",
        "networks": pages.table(["network", "file in", "differs", "rounding"], lines, words=2),
        "refused": "\n".join(refused) or "None.",
        "missing": ", ".join(missing) or "None.",
        "measured": "; ".join(measured),
    }


def run_in_process(name: str) -> List[list]:
    """Return the rows of a network, computed in another process."""
    rows, error = zoo_coverage.in_process("onnx_table", name, LONGEST)
    return rows or [[name, policy, None, None, None, error] for policy in POLICIES]


def run(name: str) -> List[list]:
    """Return a row for each policy."""
    np.random.seed(0)
    mx.random.seed(0)
    if name in OTHERS:
        net, inputs, batch_axis = OTHERS[name]()
        net.initialize(mx.init.Xavier())
        net(*inputs)
    else:
        options = {"crop_size": CROP} if re.search(zoo_coverage.SEGMENTATION, name) else {}
        pixels = options.get("crop_size", zoo_coverage.pixels_of(name))
        # GluonCV's R-CNNs accept one image alone
        inputs, batch_axis = (images(pixels, 4 if pixels < 224 else 2),), 0
        if "rcnn" in name:
            inputs, batch_axis = (inputs[0][:1],), None
        net = zoo_coverage.untrained(name, **options)
        zoo_coverage.initialize(net, inputs[0])
        zoo_coverage.calibrate(net, inputs[0])
    net.hybridize()
    return [exported(name, net, inputs, batch_axis, policy) for policy in POLICIES]


def exported(name: str, net, inputs: tuple, batch_axis, policy: str) -> list:
    """Return a row: network, policy, difference, what rounding explains, megabytes and error."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.onnx"
        try:
            report = amp.export_onnx(net, file, *inputs, policy=policy, batch_axis=batch_axis)
        except Exception as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            return [name, policy, None, None, None, kind + str(error).split("\n")[0]]
    proven = [one for one in report.rows if one.allowed is not None]
    worst = max(proven, key=lambda one: one.largest / max(one.allowed, 1e-30))
    return [name, policy, worst.largest, worst.allowed, round(report.size / 1e6, 3), ""]


def line(row: list) -> str:
    """Return a row as a line of the printed table."""
    name, policy, largest, allowed, size, error = row
    numbers = "" if error else f"{largest:8.1e} {allowed:8.1e} {size:7.1f} MB"
    return f"{name:<38} {policy:<8} {numbers}{error}"


if __name__ == "__main__":
    sys.exit(main())
