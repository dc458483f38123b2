"""The parts of docs/how_to/index.md, and whether losses are within the spread of float32's."""

import math
import statistics
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from experiments.clients.cases import Case, Family
from experiments.clients.run import Job, Records
from experiments.pages import Parts, table
from gluon_amp.base.messages import UsageError

POLICIES = ("float16", "mixed_float16", "bfloat16")
DTYPES = ("float32", *POLICIES)
LAST = 5  # the final loss is the mean of this many last steps'

Record = Dict[str, Any]  # of a run, as `run.run` returns it
SEEDS = 3  # of each dtype; the spread of float32 is the measure

Chosen = List[Tuple[Family, Case]]


def final_loss(losses: Sequence[float]) -> float:
    """Return the mean loss of the last steps."""
    return statistics.fmean(losses[-LAST:])


class Comparison(NamedTuple):
    """The runs of one policy beside those of float32 with the same seeds."""

    losses: List[float]  # the final loss of each seed
    difference: float  # from float32's final loss of the same seed, where it is largest in size
    spread: float  # the largest minus the smallest final loss of float32 over its seeds
    seconds: float  # median of a step, over the runs
    ratio: float  # the seconds of float32 divided by those of the policy
    error: Optional[str] = None  # why there is no result; the numbers are then NaN

    @property
    def within(self) -> bool:
        """Whether each difference is at most the spread; NaN never is."""
        return abs(self.difference) <= self.spread


def compare(policy: Sequence[Record], float32: Sequence[Record]) -> Comparison:
    """Compare the records of a policy with those of float32, which have at least the same seeds."""
    error = next((r["error"] for r in [*float32, *policy] if "error" in r), None)
    if error:
        return Comparison([], math.nan, math.nan, math.nan, math.nan, error)
    reference = {record["seed"]: final_loss(record["losses"]) for record in float32}
    losses = [final_loss(record["losses"]) for record in policy]
    differences = [loss - reference[r["seed"]] for loss, r in zip(losses, policy)]
    # not max: it may pass over NaN
    largest = sorted(differences, key=lambda d: (math.isnan(d), abs(d)))[-1]
    seconds, seconds32 = (
        statistics.median(r["step_seconds"] for r in s) for s in (policy, float32)
    )
    spread = max(reference.values()) - min(reference.values())
    return Comparison(losses, largest, spread, seconds, seconds32 / seconds)


class Row(NamedTuple):
    """A case and the records of its runs with each of `DTYPES`."""

    family: Family
    case: Case
    records: Mapping[str, Sequence[Record]]

    @property
    def name(self) -> str:
        """The case with its family, as in ``gluoncv/ssd``."""
        return f"{self.family.name}/{self.case.name}"

    @property
    def comparisons(self) -> List[Comparison]:
        """Each policy beside float32."""
        return [compare(self.records[dtype], self.records["float32"]) for dtype in DTYPES]


def parts(rows: Sequence[Row]) -> Parts:
    """Return the parts of the page."""
    runs = [record for row in rows for dtype in DTYPES for record in row.records[dtype]]
    verdicts = [comparison.within for row in rows for comparison in row.comparisons[1:]]
    machines = "; ".join(sorted({record["machine"] for record in runs}))
    dates = sorted(record["date"] for record in runs)
    families = {row.family.name: row.family for row in rows}.values()
    return {
        "within": f"{sum(verdicts)} of {len(verdicts)} comparisons are within the spread of "
        "float32.",
        "measured": f"{machines}, one thread a run, from {dates[0]} to {dates[-1]}",
        "versions": "\n".join(
            f"- {one.name}: Python {one.python}, {', '.join(one.versions)}" for one in families
        ),
        "losses": table(["case", "edits", *DTYPES], list(map(_losses, rows))),
    }


def _losses(row: Row) -> List[str]:
    float32, *policies = row.comparisons
    spread = f"{min(float32.losses, default=0):.4g} to {max(float32.losses, default=0):.4g}"
    cells = [float32.error or spread, *map(_loss, policies)]
    return [row.name, f"{row.case.lines}", *(c.replace("|", "\\|") for c in cells)]


def _loss(policy: Comparison) -> str:
    if policy.error:
        return policy.error
    outside = "" if policy.within else " **outside**"
    return f"{policy.difference:+.2g}, {policy.ratio:.2f}×{outside}"


# ------------------------------------------------------------------ which runs a table has


def choose(names: Sequence[str], families: Sequence[Family]) -> Chosen:
    """Return the cases of these names, or all; an unknown name is a `UsageError`."""
    known = {f"{one.name}/{case.name}": (one, case) for one in families for case in one.cases}
    for name in names:
        if name not in known and name not in {family.name for family in families}:
            listed = ", ".join(sorted(known))
            raise UsageError(f"there is no client {name!r}: expected a family or one of {listed}.")
    return [pair for name, pair in known.items() if not names or {name, pair[0].name} & {*names}]


def plan(family: Family, case: Case) -> List[Job]:
    """Return all runs of a case."""
    return [Job(family, case, dtype, seed) for dtype in DTYPES for seed in range(SEEDS)]


def rows(chosen: Chosen, records: Records) -> List[Row]:
    """Return the cases of which every run has a record."""
    result = []
    for family, case in chosen:
        found = [records.find(job) for job in plan(family, case)]
        if all(found):
            by_dtype = {dtype: [r for r in found if r["policy"] == dtype] for dtype in DTYPES}
            result.append(Row(family, case, by_dtype))
    return result
