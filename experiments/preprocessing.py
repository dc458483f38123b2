"""Measure what changes when another framework decodes, resizes, crops and normalises the images.

    python -m experiments.preprocessing --output docs/results

The images are parts of scikit-learn's two photographs. The network is EfficientNet-Lite0 with
ImageNet's weights. Pillow, which decodes and resizes for torchvision, comes with GluonCV.
"""

import io
import sys
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import cv2
import numpy as np
import PIL.Image
from sklearn.datasets import load_sample_images

from experiments import pages
from gluon_amp.training.command_line import Parser, path, positive_int, status_of
from gluon_amp.training.data.decode import decode
from gluon_amp.training.data.imagenet_transforms import random_box
from gluon_amp.training.networks import efficientnet_lite, weights

import mxnet as mx

SHORT, SIDE = (256, 224), 224  # what the short side is resized to, and the side of the crop
MIN_AREA = 0.35  # of a part in its photograph: its short side is longer than 256 pixels
BATCH = 50
MEAN, STD = efficientnet_lite.RGB_MEAN[0], efficientnet_lite.RGB_STD[0]  # of pixels up to 255

Image = np.ndarray  # (H, W, 3), red first
Resize = Callable[[Image, Tuple[int, int]], Image]  # to (width, height)


def opencv(how: int) -> Resize:
    """Return a resize by an interpolation of OpenCV."""
    return lambda image, size: cv2.resize(image, size, interpolation=how)


def pillow(how: int) -> Resize:
    """Return a resize by a filter of Pillow, which is antialiased."""
    return lambda image, size: np.asarray(PIL.Image.fromarray(image).resize(size, how))


class Pipeline(NamedTuple):
    """The way from a JPEG to the input of a network; the defaults are gluon_amp's."""

    decoded: Callable[[bytes], Image] = lambda encoded: decode(encoded)[..., ::-1]
    resized: Resize = opencv(cv2.INTER_LINEAR)
    rounded: Callable[[float], int] = int  # half of what the crop leaves out
    step: int = 1  # -1 reverses the channels
    unit: float = 1.0  # by which mean and deviation are multiplied

    def crop(self, image: Image, short: int) -> Image:
        """Resize the short side; return the centre."""
        height, width = image.shape[:2]
        scale = short / min(height, width)
        height, width = (max(short, int(length * scale)) for length in (height, width))
        image = self.resized(np.ascontiguousarray(image), (width, height))
        top, left = (self.rounded((length - SIDE) / 2) for length in (height, width))
        return image[top : top + SIDE, left : left + SIDE, :: self.step]


def _by_pillow(encoded: bytes) -> Image:
    return np.asarray(PIL.Image.open(io.BytesIO(encoded)).convert("RGB"))


def _by_mxnet(encoded: bytes) -> Image:
    return mx.image.imdecode(encoded).asnumpy()


OURS = Pipeline()
AREA, CUBIC = (Pipeline(resized=opencv(how)) for how in (cv2.INTER_AREA, cv2.INTER_CUBIC))
BILINEAR, BICUBIC = (pillow(how) for how in (PIL.Image.BILINEAR, PIL.Image.BICUBIC))
EXACT = Pipeline(resized=lambda image, size: cv2.resize(image.astype(np.float32), size))
# Two pipelines that are compared
CASES: Dict[str, Tuple[Pipeline, Pipeline]] = {
    "JPEG decoded by OpenCV, by MXNet": (OURS, Pipeline(_by_mxnet)),
    "JPEG decoded by OpenCV, by Pillow": (OURS, Pipeline(_by_pillow)),
    "Crop rounded down, to even": (OURS, Pipeline(rounded=round)),
    "OpenCV bilinear in uint8, in float32": (OURS, EXACT),
    "OpenCV bilinear, Pillow bilinear (antialiased)": (OURS, Pipeline(resized=BILINEAR)),
    "OpenCV cubic, Pillow bicubic (antialiased)": (CUBIC, Pipeline(resized=BICUBIC)),
    "OpenCV area, Pillow bilinear (antialiased)": (AREA, Pipeline(resized=BILINEAR)),
    "OpenCV bilinear, OpenCV area": (OURS, AREA),
    "gluon_amp, all of torchvision's": (OURS, Pipeline(_by_pillow, BILINEAR, round)),
    "RGB, BGR": (OURS, Pipeline(step=-1)),
    "Pixels up to 255: normalised as such, as pixels up to 1": (OURS, Pipeline(unit=1 / 255)),
    "Pixels up to 1: normalised as such, as pixels up to 255": (OURS, Pipeline(unit=255.0)),
}


def photographs() -> List[bytes]:
    """Return the photographs as JPEGs with halved colour channels, as cameras write them."""
    return [cv2.imencode(".jpg", i[..., ::-1])[1].tobytes() for i in load_sample_images().images]


def levels(here: Pipeline, there: Pipeline, short: int) -> List[float]:
    """Return the mean and the largest difference of the photographs' centres, of 255 levels."""
    crops = [
        [p.crop(p.decoded(encoded), short).astype(np.float32) for encoded in photographs()]
        for p in (here, there)
    ]
    difference = np.abs(np.subtract(*crops))
    return [float(difference.mean()), float(difference.max())]


class Network:
    """The network, and random parts of the photographs; it keeps the logits of each pipeline."""

    def __init__(self, parts: int):
        self.net = efficientnet_lite.EfficientNetLite0()
        self.net.initialize()
        weights.load_matching(self.net, weights.pretrained_file(efficientnet_lite.NAME, Path()))
        self.net.hybridize(static_alloc=True)
        self.parts = parts
        self._logits: Dict[Pipeline, np.ndarray] = {}

    def logits(self, pipeline: Pipeline) -> np.ndarray:
        """Return the logits of the parts of all photographs, (images, classes)."""
        if pipeline not in self._logits:
            generator, crops = np.random.default_rng(0), []
            for image in map(pipeline.decoded, photographs()):
                for _ in range(self.parts):
                    top, left, high, wide = random_box(image.shape[:2], generator, MIN_AREA)
                    part = image[top : top + high, left : left + wide]
                    crops.append(pipeline.crop(part, SHORT[0]).astype(np.float32))
            inputs = (np.stack(crops) - MEAN * pipeline.unit) / (STD * pipeline.unit)
            batches = np.split(inputs.transpose(0, 3, 1, 2), range(BATCH, len(crops), BATCH))
            outputs = [self.net(mx.nd.array(batch)).asnumpy() for batch in batches]
            self._logits[pipeline] = np.concatenate(outputs)
        return self._logits[pipeline]

    def changes(self, here: Pipeline, there: Pipeline) -> List[float]:
        """Return the relative change of the logits, and of the top-1 class, in percent."""
        one, other = self.logits(here), self.logits(there)
        changed = one.argmax(axis=1) != other.argmax(axis=1)
        distance = np.linalg.norm(other - one) / np.linalg.norm(one)
        return [100 * float(distance), 100 * float(changed.mean())]


def parts(values: pages.Values) -> pages.Parts:
    """Return the parts of the page."""
    head = ["compared", *(f"{short}: {name}" for short in SHORT for name in ("mean", "largest"))]
    forms = (".2f", ".0f", ".2f", ".0f", ".1f", ".1f")
    rows = [[name, *map(format, row, forms)] for name, row in values["rows"].items()]
    return {
        "images": f"{values['parts']} random parts of each photograph",
        "differences": pages.table([*head, "logits", "top-1"], rows),
        "measured": pages.measured(values),
    }


def run(number: int, output: Optional[Path], words: Sequence[str]) -> None:
    """Measure all cases, print the parts of the page, and write the page."""
    network = Network(number)
    rows = {}
    for name, pair in CASES.items():
        seen = [value for short in SHORT for value in levels(*pair, short)]
        rows[name] = [*seen, *network.changes(*pair)]
    values = {**pages.about("preprocessing", words), "parts": number, "rows": rows}
    values["versions"] += f", OpenCV {cv2.__version__}, Pillow {PIL.__version__}"
    print("\n\n".join(parts(values).values()))
    if output:
        pages.write(output / "preprocessing", "results/preprocessing.md", parts(values), values)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and run it; return the status of the process."""
    parser = Parser(prog="preprocessing", description=__doc__.split("\n", 1)[0])
    images = "random parts of each photograph (default: %(default)s)"
    parser.add_argument("--parts", type=positive_int, default=100, metavar="N", help=images)
    output = "write preprocessing.md and .json there"
    parser.add_argument("--output", type=path, metavar="DIR", help=output)
    options = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    return status_of("preprocessing", lambda: run(options.parts, options.output, words))


if __name__ == "__main__":
    sys.exit(main())
