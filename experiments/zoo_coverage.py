"""Cast the networks of the Model Zoo and of GluonCV with each policy, and check the results.

Each network runs forward and backward on a small random input. A row reports for a network and a
policy whether all outputs are float32, how many of the convolution, dense, dot and RNN nodes run in
the compute dtype, and the relative L2 distance of the outputs from those of the float32 network.
A cast to float16 whose graph has an operator that a GPU could not run is not good (`gpu_graph`).

The accepted distance depends on the network, as a deep random network amplifies any change. The
yardstick is the distance of the float32 network whose weights and input are rounded once to the
compute dtype. The cast network also rounds between its layers, so FACTOR times this is accepted.

Each network runs in a process of its own, so that a crash affects only its own rows.
"""

import argparse
import json
import re
import subprocess
import sys
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

import gluon_amp as amp
from experiments import pages
from gluon_amp.base.formats import FORMATS, rounded_array
from gluon_amp.casting.binding import running_blocks
from gluon_amp.inspection.gpu_graph import gpu_findings
from gluon_amp.optimizer.arrays import flatten
from gluon_amp.policy.cast_pass import LOW_PRECISION
from gluon_amp.training.command_line import Parser, output_file

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

POLICIES = ("float16", "mixed_float16", "bfloat16")

PRODUCTS = ("Convolution", "Deconvolution", "FullyConnected", "RNN", "dot")

FACTOR = 4.0
LONGEST = 600  # seconds for a network

SEGMENTATION = r"fcn|psp|deeplab|danet|icnet|fastscnn"

# Height and width by the first pattern that matches the name: the smallest that the network's
# pooling, strides and fixed sizes allow.
PIXELS = [
    (r"ssd_300", 300),
    (r"ssd_512", 512),
    (r"inceptionv3", 299),
    (r"cifar", 32),
    (r"squeezenet|densenet|residualattentionnet|^alexnet|shufflenet|simple_pose", 224),
    (r"googlenet|resnest", 224),
    (r"vgg|hrnet|senet_154", 64),
    (r"^resnet|^mobilenet|^se_|^resnext|^xception|darknet|dla", 64),
    (r"yolo3", 96),
    (r"center_net|rcnn|alpha_pose|mobile_pose", 128),
    (SEGMENTATION, 480),
]

# Networks that return sorted detections. Their outputs cannot be compared element by element.
DETECTORS = r"yolo|rcnn|ssd|center_net"

# Networks that need ground truth in training mode. Their gradients are computed in prediction mode.
NEED_GROUND_TRUTH = r"yolo|rcnn"

BUILT_ON_ANOTHER = rf"ssd|yolo|rcnn|center_net|{SEGMENTATION}|pose"

GLUONCV = """alexnet resnet18_v1b resnet50_v1d resnet50_v1s resnet50_v2
resnext50_32x4d se_resnet18_v1 se_resnext50_32x4d senet_154 mobilenet0.5 mobilenetv2_0.5
mobilenetv3_large mobilenetv3_small googlenet inceptionv3 xception densenet121 squeezenet1.1
vgg11_bn darknet53 dla34 resnest14 resnest50 shufflenet_v1 shufflenet_v2 residualattentionnet56
se_resnet34_v2 hrnet_w18_small_v1_c hrnet_w18_small_v2_s cifar_resnet20_v1 cifar_resnet56_v2
cifar_wideresnet16_10 cifar_resnext29_32x4d cifar_residualattentionnet56
ssd_300_vgg16_atrous_voc ssd_300_mobilenet1.0_lite_coco ssd_300_resnet34_v1b_voc
ssd_512_resnet50_v1_voc ssd_512_mobilenet1.0_voc yolo3_darknet53_voc yolo3_mobilenet1.0_coco
center_net_resnet18_v1b_voc center_net_mobilenetv3_small_duc_voc faster_rcnn_resnet50_v1b_voc
faster_rcnn_fpn_resnet50_v1b_coco mask_rcnn_fpn_resnet18_v1b_coco doublehead_rcnn_resnet50_v1b_voc
fcn_resnet50_voc deeplab_resnet50_ade psp_resnet50_ade
danet_resnet50_citys icnet_resnet50_citys simple_pose_resnet18_v1b
mobile_pose_resnet18_v1b mobile_pose_mobilenetv3_small alpha_pose_resnet101_v1b_coco""".split()


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Cast the chosen networks; return 0 if all casts are good."""
    parser = Parser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    pattern = "regular expression, for example mx/resnet or cv/ssd"
    add("--networks", type=regular_expression, default="", metavar="PATTERN", help=pattern)
    add("--json", type=output_file, metavar="FILE", help="also write the rows to this file")
    add("--list", action="store_true", help="only print the names of the networks")
    add("--worker", metavar="NETWORK", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        print(json.dumps(run(options.worker)))
        return 0
    names = [name for name in all_networks() if options.networks.search(name)]
    if not names:
        sentence = f"no network matches {options.networks.pattern!r}: --list prints all."
        print(f"zoo_coverage.py: {sentence}", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(names))
        return 0
    rows = []
    print(f"{'network':<35} {'policy':<13} {'low/all':>7} {'dist.':>7} {'yard.':>7} result")
    for name in names:
        for row in run_in_process(name):
            rows.append(row)
            print(line(row), flush=True)
    good = sum(row["ok"] for row in rows)
    print(f"{good} of {len(rows)} casts of {len(names)} networks are good")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if good == len(rows) else 1


def regular_expression(text: str) -> "re.Pattern[str]":
    """Return the pattern of an option."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(
            f"expected a regular expression, got {text!r}: {error}"
        ) from None


def all_networks() -> List[str]:
    """Return the names of all networks, with the prefix of their source."""
    try:
        vision.get_model("")
    except ValueError as error:  # only its message lists the names
        names = sorted(str(error).split("\n\t")[1:])
    return [f"mx/{name}" for name in names] + [f"cv/{name}" for name in GLUONCV]


def run_in_process(name: str) -> List[dict]:
    """Return the rows of a network, computed in another process."""
    rows, error = in_process("zoo_coverage", name, LONGEST)
    return rows or [{"network": name, "policy": p, "ok": False, "error": error} for p in POLICIES]


def in_process(program: str, network: str, seconds: int) -> Tuple[list, str]:
    """Return the rows that a program of this folder prints as JSON, or none and the reason."""
    command = [sys.executable, "-m", f"experiments.{program}", "--worker", network]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return [], f"took more than {seconds} s"
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1]), ""
    return [], (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def pixels_of(name: str) -> int:
    """Return the height and width of a network's images."""
    return next(size for pattern, size in PIXELS if re.search(pattern, name.split("/")[1]))


def run(name: str) -> List[dict]:
    """Return a row for each policy."""
    pixels = pixels_of(name)
    detector = bool(re.search(DETECTORS, name))
    np.random.seed(0)
    mx.random.seed(0)
    images = 1 if "rcnn" in name else 2  # GluonCV's hybridized R-CNNs accept only one
    x = nd.random.normal(shape=(images, 3, pixels, pixels))
    net = untrained(name)
    initialize(net, x)
    expected, yardsticks = [], {}
    if not detector:
        calibrate(net, x)
        expected = [output.asnumpy() for output in outputs_of(net, x)]
        yardsticks = {dtype: yardstick(net, x, expected, dtype) for dtype in LOW_PRECISION}
    train_mode = not re.search(NEED_GROUND_TRUTH, name)
    net.hybridize()  # otherwise GluonCV's R-CNNs crash in the backward pass
    lost_in_float32 = not_finite(net, x, train_mode)
    rows = []
    for policy in POLICIES:
        row = {"network": name, "policy": policy, "pixels": pixels, "error": "", "ok": False}
        try:
            amp.cast(net, policy)
            row.update(measured(net, x, amp.Policy.parse(policy), expected, yardsticks))
            lost = not_finite(net, x, train_mode) - lost_in_float32
            if lost:
                example = min(lost)
                raise ArithmeticError(f"{len(lost)} gradients are not finite, such as {example}")
            row["ok"] = (
                row["float32_outputs"]
                and row["low"] == row["products"] > 0
                and row.get("distance", 0) <= FACTOR * row.get("yardstick", 0)
            )
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        rows.append(row)
        amp.cast(net, "float32")
    return rows


def measured(net, x, policy: amp.Policy, expected, yardsticks: Dict[str, float]) -> dict:
    """Return the fields of a row for a cast network; the first three, if nothing is expected."""
    outputs = outputs_of(net, x)
    # MXNet has no bfloat16 deconvolution (see `policy.why`)
    expected_low = [op for op in PRODUCTS if policy.decide(op).kind == "compute"]
    products = [row.compute_dtype for row in amp.describe(net).rows if row.op in expected_low]
    if policy.compute_dtype == "float16":
        for path, block in running_blocks(net):
            for finding in gpu_findings(path, block):
                raise TypeError(finding.problem)
    found = {
        "products": len(products),
        "low": products.count(policy.compute_dtype),
        "float32_outputs": all(output.dtype == np.float32 for output in outputs),
    }
    if expected:
        found["distance"] = largest_distance(outputs, expected)
        found["yardstick"] = yardsticks[policy.compute_dtype]
    return found


def untrained(name: str, **options):
    """Return a network of either source with options of its own, not initialized."""
    source, model = name.split("/")
    if source == "mx":
        return vision.get_model(model, **options)
    from gluoncv.model_zoo import get_model

    # only networks with a base network have this option
    base = {"pretrained_base": False} if re.search(BUILT_ON_ANOTHER, model) else {}
    return get_model(model, pretrained=False, **base, **options)


def initialize(net, x) -> None:
    """Initialize a network."""
    try:
        net.initialize(mx.init.MSRAPrelu())
        net(x)
    except ValueError:  # MSRAPrelu does not initialize vectors
        net.initialize(force_reinit=True)
        net(x)


def calibrate(net: gluon.HybridBlock, x: nd.NDArray) -> None:
    """Set the statistics of each BatchNorm to those of its input, as a trained net has them."""

    def measure_input(norm, arguments):
        inputs = arguments[0]
        axes = [axis for axis in range(inputs.ndim) if axis != 1]  # of the channels
        mean = inputs.mean(axis=axes, keepdims=True)
        norm.running_mean.set_data(mean.reshape(-1))
        norm.running_var.set_data(((inputs - mean) ** 2).mean(axis=axes))

    hooks = []

    def add_hook(block):
        if isinstance(block, nn.BatchNorm):
            hooks.append(block.register_forward_pre_hook(measure_input))

    for name, param in net.collect_params().items():  # norms in symbols have no hooks
        if name.endswith(("running_mean", "moving_mean", "running_var", "moving_var")):
            param.set_data(nd.full(param.shape, float(name.endswith("var"))))
    net.apply(add_hook)
    net(x)
    for hook in hooks:
        hook.detach()


def yardstick(net, x, expected, dtype: str) -> float:
    """Return the distance of the float32 network with weights and input rounded to `dtype`."""

    def to_dtype(array):
        return nd.array(rounded_array(array.asnumpy(), FORMATS[dtype]))

    before = {}
    for param in net.collect_params().values():
        if len(param.shape) > 1:
            before[param] = param.data().copy()
            param.set_data(to_dtype(before[param]))
    result = largest_distance(outputs_of(net, to_dtype(x)), expected)
    for param, value in before.items():
        param.set_data(value)
    return result


def not_finite(net, x, train_mode: bool) -> set:
    """Return the names of the parameters whose gradients are not finite."""
    with autograd.record(train_mode=train_mode):
        outputs = outputs_of(net, x)
        means = [output.mean() for output in outputs if output.dtype == np.float32]
    autograd.backward(means)
    params = net.collect_params().values()
    trained = [param for param in params if param.grad_req != "null"]
    return {param.name for param in trained if not np.isfinite(param.grad().asnumpy()).all()}


def outputs_of(net, x) -> list:
    """Return the arrays of a network's output, which may be nested."""
    return list(flatten(net(x)))


def largest_distance(outputs, expected) -> float:
    """Return the largest relative L2 distance of arrays from the expected numpy arrays."""
    norm = np.linalg.norm
    return max(
        float(norm(output.asnumpy() - values) / max(norm(values), 1e-30))
        for output, values in zip(outputs, expected)
    )


def parts(casts: Sequence[dict]) -> Dict[str, str]:
    """Return the parts of docs/results/zoo_coverage.md: how many are good, and the farthest."""
    networks, good = dict.fromkeys(cast["network"] for cast in casts), sum(c["ok"] for c in casts)
    lines = []
    for policy in POLICIES:
        rows = [cast for cast in casts if cast["policy"] == policy and "distance" in cast]
        worst = max(rows, key=lambda cast: cast["distance"] / cast["yardstick"])
        ratio = worst["distance"] / worst["yardstick"]
        numbers = (f"{worst['distance']:.1e}", f"{worst['yardstick']:.1e}", f"{ratio:.1f}")
        lines.append([policy, worst["network"], *numbers])
    head = ["policy", "farthest network", "distance", "yardstick", "their ratio"]
    return {
        "good": f"{good} of {len(casts)} casts of {len(networks)} networks are good",
        "farthest": pages.table(head, lines, words=2),
        "networks": ", ".join(networks),
    }


def line(row: dict) -> str:
    """Return a row as a line of the printed table."""
    products = f"{row['low']}/{row['products']}" if "products" in row else "-"
    distance, yardstick = (f"{row[n]:.1e}" if n in row else "-" for n in ("distance", "yardstick"))
    result = "ok" if row["ok"] else row["error"] or "FAILED"
    start = f"{row['network']:<35} {row['policy']:<13}"
    return f"{start} {products:>7} {distance:>7} {yardstick:>7} {result}"


if __name__ == "__main__":
    sys.exit(main())
