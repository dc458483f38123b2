"""What is trained from each seed, as data, and the runs that this takes."""

from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Tuple

from gluon_amp.training.tables.record import SUMMARY, Configuration
from gluon_amp.training.tables.runs import Job

SCRIPT = Path(__file__).with_name("traced_run.py")
TRACE = "trace.npz"
# A killed run resumes from its last checkpoint. All are kept, as the trace is made of them.
RESUME = ("--save-dir", "{folder}/checkpoints", "--keep", "100000", "--resume", "auto")


class Row(NamedTuple):
    """One way to train: `start` is how the initial weights of the seed are used (`traced_run`)."""

    name: str
    label: str
    dtype: str
    start: str
    precision: Tuple[str, ...]  # options


FLOAT32 = ("--dtype", "float32")
REFERENCE = Row("float32", "float32", "float32", "own", FLOAT32)
# Trained for the first seed only: it shows that nothing but the row's difference has an effect.
CONTROL = Row("control", "float32, weights from a file", "float32", "copied", FLOAT32)
FLOOR = Row("floor", "float32, disturbed by 1 ulp", "float32", "disturbed", FLOAT32)
# A static scale separates what float16's rounding does from what the search for a scale does; 64 is
# low enough for the gradients of the digits and of Fashion-MNIST.
STATIC = ("--dtype", "float16", "--loss-scale", "64")
DTYPES = (
    Row("float16", "float16", "float16", "own", ("--dtype", "float16")),
    Row("float16_static", "float16, static scale of 64", "float16", "own", STATIC),
    Row("mixed_float16", "mixed_float16", "mixed_float16", "own", ("--amp",)),
    Row("bfloat16", "bfloat16", "bfloat16", "own", ("--dtype", "bfloat16")),
)
COMPARED = (FLOOR, *DTYPES)


def jobs(
    dataset: str, folder: Path, seeds: Sequence[int], batch: int, extra: Sequence[str] = ()
) -> Dict[int, List[Job]]:
    """Return the runs of each seed; the first of a seed is the reference."""
    rows_of_first = (REFERENCE, CONTROL, *COMPARED)
    result: Dict[int, List[Job]] = {}
    for seed in seeds:
        rows = rows_of_first if seed == seeds[0] else (REFERENCE, *COMPARED)
        result[seed] = [_job(row, dataset, folder, seed, batch, extra) for row in rows]
    return result


def _job(row: Row, dataset: str, root: Path, seed: int, batch: int, extra: Sequence[str]) -> Job:
    folder = root / row.name / f"seed-{seed}"
    arguments = [row.start, f"{folder}/{TRACE}", "--dataset", dataset, *row.precision, *RESUME]
    arguments += ["--seed", str(seed), "--batch-size", str(batch), *extra]
    arguments += ["--summary-json", f"{folder}/{SUMMARY}"]
    expanded = tuple(text.replace("{folder}", str(folder)) for text in arguments)
    configuration = Configuration(row.name, row.label, row.dtype, batch)
    return Job(configuration, seed, folder, (str(SCRIPT),), expanded)
