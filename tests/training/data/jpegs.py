"""JPEGs for tests, and folders of them."""

import cv2
import numpy as np


def smooth(height, width, seed=0):
    """Return a uint8 (H, W, 3) image without sharp edges, blue first."""
    colours = np.random.RandomState(seed).uniform(0, 255, (4, 4, 3))
    return np.clip(cv2.resize(colours, (width, height)), 0, 255).astype(np.uint8)


def jpeg(image, quality=95):
    """Return the bytes of a JPEG."""
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def write_jpeg(path, number, height=40, width=30):
    """Write a file whose grey levels depend on the number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.full((height, width, 3), number * 37 % 256, np.uint8)
    image[: height // 2] = 255 - image[0, 0]
    cv2.imwrite(str(path), image)


def write_classes_abc(root):
    """Write three classes of 3, 4 and 5 images."""
    for label, name in enumerate("cab"):
        for number in range(3 + "abc".index(name)):
            write_jpeg(root / name / f"{number}.jpg", 10 * label + number)
    return root
