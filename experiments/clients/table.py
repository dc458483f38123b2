"""The table of all cases, in Markdown."""

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Sequence

from experiments.clients.cases import Case, Family
from experiments.clients.comparison import Comparison, compare

POLICIES = ("float16", "mixed_float16", "bfloat16")
DTYPES = ("float32", *POLICIES)

PAGE = """# Clients of MXNet, cast

`make clients` writes this page and [clients.json](clients.json). Each case is a small program in
the style of its project, trained on synthetic data. In float32, stock MXNet runs it unchanged. For
the other dtypes it is edited as in `experiments/clients/families/`. `edits` is the number of lines
that are changed or added.

{summary}

Measured on {machines}, one thread a run, from {first} to {last}. float16 is emulated on a CPU, so
its times do not apply to a GPU.

{versions}

## Losses

A loss is the mean of the last five steps.

- The column `float32` has the smallest and the largest loss of three seeds. The spread is their
  difference.
- The column of a policy has the loss of the first seed, and in parentheses the largest difference
  from float32 with the same seed. **outside** marks a difference that is larger than the spread.

{losses}

## Time

The median milliseconds of a step, and in parentheses the speed relative to stock float32; higher is
better.

{times}
{extras}"""

EXTRAS = """
## Further results

What the programs compute after training, for the first seed.

{rows}
"""


@dataclass(frozen=True)
class Row:
    """A case and the records of its runs with each of `DTYPES`."""

    family: Family
    case: Case
    records: Mapping[str, Sequence[Dict[str, Any]]]

    @property
    def name(self) -> str:
        """The case with its family, as in ``gluoncv/ssd``."""
        return f"{self.family.name}/{self.case.name}"

    @property
    def comparisons(self) -> List[Comparison]:
        """Each policy beside float32."""
        return [compare(self.records[dtype], self.records["float32"]) for dtype in DTYPES]


def render(rows: Sequence[Row]) -> str:
    """Return the page."""
    runs = [record for row in rows for dtype in DTYPES for record in row.records[dtype]]
    extras = [extra for row in rows for extra in _extras(row)]
    verdicts = [comparison.within for row in rows for comparison in row.comparisons[1:]]
    return PAGE.format(
        summary=f"{sum(verdicts)} of {len(verdicts)} comparisons are within the spread of float32.",
        machines="; ".join(sorted({record["machine"] for record in runs})),
        first=min(record["date"] for record in runs),
        last=max(record["date"] for record in runs),
        versions="\n".join(f"- {line}" for line in _versions(rows)),
        losses=_markdown(["case", "steps", "edits", *DTYPES], map(_losses, rows)),
        times=_markdown(["case", *DTYPES], map(_times, rows)),
        extras=_further_results(extras) if extras else "",
    )


def _further_results(extras: Sequence[Sequence[str]]) -> str:
    return EXTRAS.format(rows=_markdown(["case", "result", *DTYPES], extras))


def _versions(rows: Sequence[Row]) -> List[str]:
    families = {row.family.name: row.family for row in rows}.values()
    return [f"{f.name}: Python {f.python}, {', '.join(f.versions)}" for f in families]


def _losses(row: Row) -> List[str]:
    float32, *policies = row.comparisons
    steps = row.records["float32"][0]["steps"]
    cells = [_range(float32), *map(_loss, policies)]
    return [row.name, f"{steps}", f"{row.case.lines}", *cells]


def _range(float32: Comparison) -> str:
    if float32.error:
        return float32.error
    return f"{min(float32.losses):.4g} to {max(float32.losses):.4g}"


def _loss(policy: Comparison) -> str:
    if policy.error:
        return policy.error
    outside = "" if policy.within else " **outside**"
    return f"{policy.losses[0]:.4g} ({policy.difference:+.2g}){outside}"


def _times(row: Row) -> List[str]:
    return [
        row.name,
        *(
            "" if c.error else f"{_milliseconds(c.seconds)} ({c.ratio:.2f})"
            for c in row.comparisons
        ),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.{0 if seconds >= 0.1 else 1}f}"


def _extras(row: Row) -> List[List[str]]:
    extras = [row.records[dtype][0].get("extra", {}) for dtype in DTYPES]
    return [
        [row.name, name, *(f"{e[name]:.4g}" if name in e else "" for e in extras)]
        for name in extras[0]
    ]


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, [":---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )
