"""Train on the digits in every dtype, with the same seed, and compare the accuracies.

    make accuracy

Fails below 97.0 % top-1, or where a dtype ends more than 1.5 points from float16.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, Optional, Sequence

from standalone import options

SCRIPT = Path(__file__).with_name("train_imagenet.py")
DTYPES = ("float16", "float32", "bfloat16")
LOWEST = 97.0
APART = 1.5


def train(dtype: str, seed: int, folder: Path) -> Optional[Dict]:
    """Run the script as `make train` does; return its summary, or None where it failed."""
    path = folder / f"{dtype}.json"
    command = [sys.executable, str(SCRIPT), "--dataset", "digits", "--batch-size", "256"]
    command += ["--dtype", dtype, "--seed", str(seed), "--summary-json", str(path)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL)
    return json.loads(path.read_text()) if done.returncode == 0 else None


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Train once in each dtype; return 0 if all is as it should be."""
    parser = options.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=options.natural, default=0, metavar="N",
        help="default: %(default)s")  # fmt: skip
    seed = parser.parse_args(arguments).seed
    failed, reference = False, None
    print("dtype     top-1    validated  computed in  skipped  images/s  seconds  verdict")
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            summary = train(dtype, seed, Path(folder))
            if summary is None:
                print(f"{dtype:<8}  did not finish")
                failed = True
                continue
            reference = summary["top1"] if reference is None else reference
            good = summary["top1"] >= LOWEST and abs(summary["top1"] - reference) <= APART
            failed = failed or not good or summary["validated"] != summary["val_images"]
            counted = f"{summary['validated']}/{summary['val_images']}"
            print(
                f"{dtype:<8}  {summary['top1']:5.2f} %  {counted:<9}  "
                f"{summary['observed_dtypes']['conv_compute']:<11}  "
                f"{summary['skipped_steps']:7d}  {summary['images_per_second']:8.1f}  "
                f"{summary['seconds']:7.1f}  {'ok' if good else 'FAILED'}",
                flush=True,
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
