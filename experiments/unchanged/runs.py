"""Runs of the command: exit status, output and files, without what depends on time and memory."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, Tuple

import numpy as np

from experiments.unchanged.outcome import array_text

FEW = "--max-batches 3 --log-interval 1 --summary-json summary.json --log-json log.jsonl"
COMMAND = [sys.executable, "-m", "gluon_amp"]
# The command, which is interrupted where it logs its second batch
INTERRUPTED = """
import logging, signal, sys, gluon_amp_console
handle = logging.Logger.handle
def interrupt(logger, record):
    handle(logger, record)
    "Batch [1]" in record.getMessage() and signal.raise_signal(signal.SIGINT)
logging.Logger.handle = interrupt
gluon_amp_console.main(sys.argv[1:])"""

# The command lines of each run, one after another in the same folder
RUNS = {
    "float16, resumed": f"""
        train --dtype float16 --num-epochs 2 {FEW} --save-dir run --logging-file log
        train --dtype float16 --num-epochs 3 {FEW} --save-dir run --resume --plot e.png
        export run --output net.onnx""",
    "bfloat16, accumulated on two devices": f"""
        train --dtype bfloat16 --num-epochs 1 {FEW} --accumulate 2 --cpus 2 --ema-decay 0.9 \
            --clip-grad 1 --optimizer adamw --no-wd --save-dir run --confusions 3""",
    "Module": f"""
        train --mode module --amp --num-epochs 2 {FEW} --save-dir run --cpus 2
        train --mode module --amp --num-epochs 3 {FEW} --save-dir run --load-epoch 2""",
    "synthetic and measured": """
        train --benchmark 1 --model cifar_resnet20_v1 --batch-size 4 --dtype float16 \
            --input-size 32 --max-batches 3 --loss-scale 512
        train --test-io""",
    "fine-tune": f"""
        fine-tune --dtype mixed_float16 --num-epochs 1 {FEW} --mixup --save-dir run""",
    "text": f"""
        train-text --dtype float16 --num-epochs 1 {FEW} --characters 20000 --save-dir run \
            --save-batches 2 --keep 1
        train-text --dtype bfloat16 --model transformer --num-epochs 1 {FEW} --characters 20000 \
            --ema-decay 0.9""",
    "interrupted and resumed": f"""
        INTERRUPTED train --dtype float16 --num-epochs 2 {FEW} --save-dir run --mode imperative
        train --dtype float16 --num-epochs 2 {FEW} --save-dir run --resume auto""",
    "two workers": f"""
        launch -n 2 -s 1 -- {shlex.join(COMMAND)} train --dtype float16 --num-epochs 1 {FEW} \
            --kv-store dist_sync --save-dir run""",
    "results": """
        results --seeds 1 --output table -- --num-epochs 1 --max-batches 2""",
    "study": f"""
        train --dtype compute=float8_e4m3,gradients=float8_e5m2 --num-epochs 1 {FEW} \
            --loss-scale dynamic:1024 --label-smoothing --warmup-epochs 0 --deterministic""",
}

NUMBER = r"[-+\d.e]+"
# What differs from run to run, between the words around it
MASKED = (
    rf'("[\w ]*(?:per_second|seconds|share|mebibytes|_ms|speed|waited|memory)\w*"[:,] ){NUMBER}()',
    rf"(Speed: |speed: |time cost: |waited for data:? |about )\s*{NUMBER}()",
    rf"()\b{NUMBER}( (?:training (?:images|characters)/s|s in all|s, \d+ epoch))",
    rf"(\| )(?:{NUMBER} s|{NUMBER}x) +()",  # the tables of results
    r"(\| b?float\w+, batch \d+ +\|)[^|]+\|[^|]+()",
    rf"(,\d+,){NUMBER},{NUMBER},\d{{7,}}(,)",  # and their values
    r"(process )\d+ on \w+()",
    r"(extra/\d+\.npy: float64 \(1,\) ).*()",  # seconds of several workers
    r"()\d{4}-\d\d-\d\d()",
)
# Found by each process that a run starts: a machine with other work is warned of.
IDLE = "import os\nos.getloadavg = lambda: (0.0, 0.0, 0.0)\n"


def runs() -> Iterator[Tuple[str, Callable[[], str]]]:
    """Yield a case for each run."""
    for name, lines in RUNS.items():
        yield name, partial(run, name, lines)


def run(name: str, lines: str) -> str:
    """Return what the commands of a run print and write."""
    folder = Path(re.sub(r"\W+", "-", name)).absolute()
    folder.mkdir()
    Path("sitecustomize.py").write_text(IDLE)
    paths = os.pathsep.join([os.getcwd(), os.environ["PYTHONPATH"]])
    parts, environment = [], {**os.environ, "PYTHONPATH": paths}
    for line in lines.replace("\\\n", "").strip().splitlines():
        command = COMMAND + shlex.split(line)
        if "INTERRUPTED" in line:
            command = [sys.executable, "-c", INTERRUPTED, *shlex.split(line)[1:]]
        how = {"cwd": folder, "env": environment, "text": True, "capture_output": True}
        done = subprocess.run(command, **how)
        parts += [f"exit status {done.returncode}", masked(done.stdout), masked(done.stderr)]
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    parts += [f"\n# {file.relative_to(folder)}\n{content(file)}" for file in files]
    text = "\n".join(parts)
    return "\n".join(sorted(text.splitlines())) if "workers" in name else text


def masked(text: str) -> str:
    """Return a text without times, speeds and memory."""
    for pattern in MASKED:
        text = re.sub(pattern, r"\1…\2", text)
    return text


def content(file: Path) -> str:
    """Return a text, the members of an archive, or a digest."""
    data = file.read_bytes()
    if file.suffix == ".png":
        return "an image"
    if zipfile.is_zipfile(file):
        archive = zipfile.ZipFile(file)
        members = (f"{name}: {member(name, archive.read(name))}" for name in archive.namelist())
        return masked("\n".join(members))
    try:
        return masked(data.decode())
    except UnicodeDecodeError:
        return array_text("bytes", np.frombuffer(data, "uint8"))


def member(name: str, data: bytes) -> str:
    """Return a member of an archive as text."""
    if name.endswith(".npy"):
        return array_text("", np.load(io.BytesIO(data))).strip()
    return json.dumps(json.loads(data)).replace("], [", "],\n[")
