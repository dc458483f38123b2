"""Cast the networks of the Model Zoo and of GluonCV by each policy, and print what came of it.

For each network and policy: forward and backward on a small random input, whether all outputs are
float32, how many convolution, dense, dot and RNN nodes there are and how many of them run in the
compute dtype, and how far the outputs are from the float32 network's (relative L2 distance).

How far is near enough depends on the network: a deep random one amplifies any change. So the yard-
stick is what the float32 network itself does when its weights and its input are rounded once to the
compute dtype. The cast network also rounds between its layers, and may be FACTOR times as far.

Each network runs in a process of its own, so that a crash costs one row.
"""

import argparse
import json
import re
import subprocess
import sys
from typing import Optional, Sequence

from experiments.standalone import command_line

POLICIES = ("float16", "mixed_float16", "bfloat16")

PRODUCTS = ("Convolution", "Deconvolution", "FullyConnected", "RNN", "dot")

FACTOR = 4.0

# bits of a float32 that rounding to the dtype drops, for normal values
DROPPED_BITS = {"float16": 13, "bfloat16": 16}

# Pixels a side, by the first pattern that finds the name: the smallest that the network's pooling,
# strides and fixed sizes allow.
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
    (r"center_net", 128),
    (r"rcnn", 128),
    (r"fcn|psp|deeplab|danet|icnet|fastscnn", 480),
    (r"alpha_pose", 128),
    (r"mobile_pose", 128),
]

# Networks that return sorted detections: their outputs cannot be compared number by number.
DETECTORS = r"yolo|rcnn|ssd|center_net"

# Networks that need ground truth in training mode: their gradient is taken in prediction mode.
WANT_TRUTH = r"yolo|rcnn"

BUILT_ON_ANOTHER = r"ssd|yolo|rcnn|center_net|fcn|psp|deeplab|danet|icnet|fastscnn|pose"

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
    """Cast the networks asked for; return 0 if all casts are good."""
    args = parse_args(arguments)
    if args.worker:
        print(json.dumps(run(args.worker, args.policies)))
        return 0
    names = [name for name in all_networks() if args.networks.search(name)]
    if not names:
        shown = f"zoo_coverage.py: no network matches {args.networks.pattern!r}: --list shows them."
        print(shown, file=sys.stderr)
        return 2
    if args.list:
        print("\n".join(names))
        return 0
    rows = []
    print(HEADER)
    for name in names:
        for row in run_in_process(name, args):
            rows.append(row)
            print(line(row), flush=True)
    good = sum(row["ok"] for row in rows)
    print(f"{good} of {len(rows)} casts of {len(names)} networks are good")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if good == len(rows) else 1


def pattern(text: str) -> "re.Pattern[str]":
    """Read a regular expression."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(
            f"expected a regular expression, got {text!r}: {error}"
        ) from None


def parse_args(arguments: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.Parser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--networks", type=pattern, default=pattern(""), metavar="PATTERN",
        help="regular expression, as in 'mx/resnet' or 'cv/ssd'")  # fmt: skip
    add("--policies", nargs="+", default=POLICIES, choices=POLICIES)
    add(
        "--json",
        type=command_line.output_file,
        metavar="FILE",
        help="also write the rows to this file",
    )
    add("--list", action="store_true", help="print the networks and leave")
    add("--timeout", type=command_line.positive_int, default=600, metavar="SECONDS",
        help="for one network (default: %(default)s)")  # fmt: skip
    add("--worker", metavar="NETWORK", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def all_networks() -> list:
    import gluon_amp  # noqa: F401

    from mxnet.gluon.model_zoo import vision

    return [f"mx/{name}" for name in sorted(zoo_names(vision))] + [f"cv/{n}" for n in GLUONCV]


def zoo_names(vision) -> list:
    """Return the names that `vision.get_model` takes; it lists them only in its error message."""
    try:
        vision.get_model("")
    except ValueError as error:
        return str(error).split("\n\t")[1:]


def run_in_process(name: str, args: argparse.Namespace) -> list:
    command = [sys.executable, "-m", "experiments.zoo_coverage"]
    command += ["--worker", name, "--policies", *args.policies]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])
        error = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        error = f"took more than {args.timeout} s"
    return [{"network": name, "policy": p, "ok": False, "error": error} for p in args.policies]


def run(name: str, policies) -> list:
    import numpy as np

    import gluon_amp as amp
    from gluon_amp.policy import Policy

    import mxnet as mx
    from mxnet import nd
    from mxnet.gluon.block import _flatten

    pixels = next(size for pattern, size in PIXELS if re.search(pattern, name.split("/")[1]))
    detector = bool(re.search(DETECTORS, name))
    np.random.seed(0)
    mx.random.seed(0)
    images = 1 if "rcnn" in name else 2  # GluonCV's R-CNNs take one image where they are hybridized
    x = nd.random.normal(shape=(images, 3, pixels, pixels))
    net = build(name, x)
    if not detector:
        calibrate(net, x)
    expected = [o.asnumpy() for o in _flatten(net(x), "output")[0]]

    yardsticks = {}
    if not detector:
        for dtype in DROPPED_BITS:
            yardsticks[dtype] = yardstick(net, x, expected, dtype)

    train_mode = not re.search(WANT_TRUTH, name)
    net.hybridize()  # GluonCV's R-CNNs crash in a backward pass that is not
    lost_in_float32 = not_finite(net, x, train_mode)
    rows = []
    for policy in policies:
        row = {"network": name, "policy": policy, "pixels": pixels, "error": ""}
        rows.append(row)
        try:
            amp.cast(net, policy)
            outputs = _flatten(net(x), "output")[0]
            described = amp.describe(net).rows
            parsed = Policy.parse(policy)
            compute = parsed.compute_dtype
            # a bfloat16 deconvolution does not exist, as `policy.why` says
            expected_low = [op for op in PRODUCTS if parsed.decide(op).kind == "compute"]
            products = [r.compute_dtype for r in described if r.op in expected_low]
            row["products"] = len(products)
            row["low"] = products.count(compute)
            row["float32_outputs"] = all(o.dtype == np.float32 for o in outputs)
            if not detector:
                got = [o.asnumpy() for o in outputs]
                row["distance"] = max(distance(g, e) for g, e in zip(got, expected))
                row["yardstick"] = yardsticks[compute]
            lost = not_finite(net, x, train_mode) - lost_in_float32
            if lost:
                raise ArithmeticError(f"{len(lost)} gradients are not finite, as of {min(lost)}")
            row["ok"] = (
                row["float32_outputs"]
                and row["low"] == row["products"] > 0
                and row.get("distance", 0) <= FACTOR * row.get("yardstick", 0)
            )
        except Exception as error:
            row.update(ok=False, error=f"{type(error).__name__}: {str(error).splitlines()[0]}")
        amp.cast(net, "float32")
    return rows


def build(name: str, x):
    import mxnet as mx
    from mxnet.gluon.model_zoo import vision

    source, model = name.split("/")
    if source == "mx":
        net = vision.get_model(model)
    else:
        from gluoncv.model_zoo import get_model

        # only networks that are built on another one take this option
        base = {"pretrained_base": False} if re.search(BUILT_ON_ANOTHER, model) else {}
        net = get_model(model, pretrained=False, **base)
    try:
        net.initialize(mx.init.MSRAPrelu())
        net(x)
    except ValueError:  # networks with vectors that have no initializer of their own
        net.initialize(force_reinit=True)
        net(x)
    return net


def calibrate(net, x) -> None:
    """Give the BatchNorms the statistics of this data, so that no layer over- or underflows."""
    from mxnet import autograd
    from mxnet.gluon.block import _flatten

    norms = []
    net.apply(lambda b: norms.append(b) if "momentum" in getattr(b, "_kwargs", {}) else None)
    kept = [norm._kwargs["momentum"] for norm in norms]
    for norm in norms:
        norm._kwargs["momentum"] = 0.0
    with autograd.record():
        outputs = _flatten(net(x), "output")[0]
    autograd.backward(outputs)  # the CPU updates running statistics here
    for norm, momentum in zip(norms, kept):
        norm._kwargs["momentum"] = momentum


def yardstick(net, x, expected, dtype: str) -> float:
    """Return how far rounding the weights and the input to `dtype` takes the float32 network."""
    from mxnet import nd
    from mxnet.gluon.block import _flatten

    kept = {}
    for param in net.collect_params().values():
        if len(param.shape) > 1:
            kept[param] = param.data().copy()
            param.set_data(nd.array(rounded(kept[param].asnumpy(), DROPPED_BITS[dtype])))
    outputs = _flatten(net(nd.array(rounded(x.asnumpy(), DROPPED_BITS[dtype]))), "output")[0]
    found = max(distance(o.asnumpy(), e) for o, e in zip(outputs, expected))
    for param, value in kept.items():
        param.set_data(value)
    return found


def rounded(values, dropped: int):
    """Round float32 values to nearest even, dropping so many of their low bits."""
    import numpy as np

    bits = values.view(np.uint32)
    odd = (bits >> dropped) & 1
    half = np.uint32(1 << (dropped - 1))
    return ((bits + (half - 1) + odd) >> dropped << dropped).view(np.float32)


def not_finite(net, x, train_mode: bool) -> set:
    """Return the parameters whose gradients are not finite."""
    import numpy as np

    from mxnet import autograd
    from mxnet.gluon.block import _flatten

    with autograd.record(train_mode=train_mode):
        outputs = _flatten(net(x), "output")[0]
        outputs = [o.mean() for o in outputs if o.dtype == np.float32]
    autograd.backward(outputs)
    params = net.collect_params().values()
    trained = [p for p in params if p.grad_req != "null"]
    return {p.name for p in trained if not np.isfinite(p.grad().asnumpy()).all()}


def distance(got, expected) -> float:
    import numpy as np

    return float(np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-30))


HEADER = f"{'network':<35} {'policy':<13} {'low/all':>7} {'dist.':>7} {'yard.':>7} result"


def line(row: dict) -> str:
    products = f"{row['low']}/{row['products']}" if "products" in row else "-"
    gap = f"{row['distance']:.1e}" if "distance" in row else "-"
    stick = f"{row['yardstick']:.1e}" if "yardstick" in row else "-"
    result = "ok" if row["ok"] else row["error"] or "FAILED"
    return f"{row['network']:<35} {row['policy']:<13} {products:>7} {gap:>7} {stick:>7} {result}"


if __name__ == "__main__":
    sys.exit(main())
