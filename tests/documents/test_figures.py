"""Every figure of the documents is recomputed from the values that are committed beside it."""

import json
import math
import re
import statistics

import pytest

from experiments import redraw
from experiments.benchmarks import families
from gluon_amp.training.tables import render
from gluon_amp.training.tables.table import published, restored
from tests import ROOT
from tests.documents.test_documents import FENCE, text_of

BENCHMARKS, RESULTS = ROOT / "docs" / "benchmarks", ROOT / "docs" / "results"
TABLES = sorted(path.parent.name for path in RESULTS.glob("*/results.json"))
PAGES = list(redraw.filled())


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page[0].relative_to(ROOT / "docs")))
def test_a_page_is_its_values(page):
    path, text, draw, found = page
    assert path.read_text(encoding="utf-8") == text
    for file, values in found.items():
        if draw:
            assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        if "benchmarks" not in file.parts:
            continue
        cases = {case["label"]: case for case in values["cases"]}
        for case in cases.values():
            assert case["median_seconds"] == statistics.median(case["seconds"])
        for ratio in values["ratios"]:
            assert ratio["median"] == statistics.median(ratio["values"])
            if ratio["figure"] == "seconds":
                over, under = (cases[ratio[end]]["seconds"] for end in ("over", "under"))
                assert ratio["values"] == pytest.approx([a / b for a, b in zip(over, under)])


def is_near(one, other) -> bool:
    """Compare nested values; the last digits of quantiles depend on scipy, of `stdev` on Python."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_near(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_near, one, other))
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_its_runs(name):
    folder = RESULTS / name
    values = load(folder / "results.json")
    table = restored(values)
    computed = json.loads(json.dumps(table.as_dict()))
    written = {key: values[key] for key in computed}
    assert is_near(written, computed)
    assert (folder / "results.csv").read_text() == render.as_csv(table)


def test_the_steps_of_the_first_page_are_those_of_the_benchmark():
    steps = {c["label"]: c["median_seconds"] for c in load(BENCHMARKS / "step.json")["cases"]}
    first = prose("docs/guide/first_network.md")
    for row, case in (
        ("1. default: stock float32", "float32"),
        ("2. cast to `float16`, no loss scale", "float16, no loss scale"),
        ("3. the same with a dynamic loss scale", "float16"),
        ("cast to `bfloat16`, which needs no scale", "bfloat16"),
    ):
        assert f"| {row} | {1000 * steps[case]:.0f} |" in first


def input_medians():
    """The medians of the input page's rounds: images a second of three readers."""
    page = text_of("docs/benchmarks/input.md")
    rounds = re.findall(r"^\| \d+ \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) \|$", page, re.MULTILINE)
    medians = [statistics.median(map(float, column)) for column in zip(*rounds)]
    shown = re.findall(r"\*\*([\d.]+)\*\*", page)
    assert shown == [*(f"{median:.0f}" for median in medians[:3]), f"{medians[3]:.2f}"]
    return medians[:3]


# ------------------------------------------------------------------------- README and other pages


def rows_of_the_faq():
    """The published rows."""
    for row in published(0.3).rows:
        about = row.configuration
        speed_up = "1" if row.speed_up == 1 else f"{row.speed_up:.2f}×"
        time = f"{row.top1.mean:.2f} % | {render.duration(row.seconds)}"
        yield f"| {about.batch} | {about.dtype} | {time} | {speed_up} |"


def mean_of(kind, quotient):
    """The mean of a speed on a kind of CPU, with the slowest and the fastest network."""
    results = families.Results(load(BENCHMARKS / f"families-{kind}.json")["cases"])
    found = results.speeds("training", quotient)
    assert len(found) == 15
    medians = list(map(statistics.median, found.values()))
    mean = statistics.median(families.geometric_means(found.values()))
    return f"{mean:.2f} times float32", f"({min(medians):.2f} to {max(medians):.2f})"


def sentences_of_the_readme():
    """What README says of the speeds, and of the tables that others show."""
    for kind, quotient, name in (("amx", 0, "AMX"), ("avx2", 3, "AVX2")):
        mean, ends = mean_of(kind, families.QUOTIENTS[quotient])
        yield f"{mean} on {name} {ends}"
    amx = load(BENCHMARKS / "families-amx.json")
    theirs = families.Results(amx["cases"]).speeds("training", families.PEER)
    assert all(statistics.median(speeds) > 1 for speeds in theirs.values())  # "each network"
    (memory,) = amx["ratios"]
    yield f"{memory['median']:.2f} of float32, ResNet-50"
    fashion = load(RESULTS / "fashion" / "results.json")
    contrasts = [row["contrasts"][0]["top1"] for row in fashion["rows"] if row["contrasts"]]
    assert contrasts and all(top1["p_tost"] < 0.05 for top1 in contrasts)  # "equivalent"
    seeds = len(fashion["rows"][0]["seeds"])
    yield f"over {seeds} seeds lie within a margin of ±{fashion['margin']:g} points"
    yield f"*published:* {published(fashion['margin']).rows[1].speed_up:.2f} times float32"


UNITS = r"%|ms|s|seconds?|minutes?|hours?|h|min|×|times|MiB|GiB|points"
# A number with a unit, or with a deviation; an approximate duration in words.
FIGURE = re.compile(
    rf"\d[\d,.]*(?: ± \d[\d.]*)?[ -]?(?:{UNITS})(?!\w)|± ?\d[\d.]*"
    r"|(?:half|quarter|third|one|two|three|several|many) ?(?:of )?an? ?(?:minute|hour)"
)


def prose(document):
    return " ".join(FENCE.sub("", text_of(document)).split())


def unexplained(text, known, pattern=FIGURE):
    """The figures in a text that are left when the known ones are taken out."""
    for figure in sorted(known, key=len, reverse=True):
        text = text.replace(figure, "")
    return pattern.findall(text)


def test_readme_and_the_page_of_results_show_the_committed_values():
    readme = list(sentences_of_the_readme())
    assert [figure for figure in readme if figure not in prose("README.md")] == []
    assert unexplained(prose("README.md"), readme) == []
    assert [row for row in rows_of_the_faq() if row not in prose("docs/results.md")] == []


def test_the_changelog_and_the_page_on_leaving_have_no_other_figures():
    ours, same, theirs = input_medians()
    rows = load(BENCHMARKS / "families-avx512_bf16.json")["reorders"]
    layouts = next(
        r["onednn"] for r in rows if (r["network"], r["kind"]) == ("resnet50_v1", "training")
    )
    figures = [
        f"{ours / theirs:.1f} times as fast as by ImageRecordIter, which takes one of them; "
        f"{same / theirs:.1f} times with one, too.",
        f"{layouts} changes of layout in a bfloat16 step of ResNet-50.",
    ]
    changelog = prose("CHANGELOG.md")
    assert [figure for figure in figures if figure not in changelog] == []
    assert unexplained(changelog, [*figures, "32 images at once instead of 2 times 16"]) == []
    changed = {name: row[-1] for name, row in load(RESULTS / "preprocessing.json")["rows"].items()}
    leaving = [
        f"{changed['OpenCV bilinear, Pillow bilinear (antialiased)']:.1f} % of the images changes",
        f"MXNet rounds it down: {changed['Crop rounded down, to even']:.1f} %.",
        f"Pillow to RGB: {changed['RGB, BGR']:.1f} %,",
    ]
    leave = prose("docs/guide/leave_mxnet.md")
    assert [figure for figure in leaving if figure not in leave] == []
    assert unexplained(leave, [*leaving, "insightface 1493: from 99 to 90 %"]) == []
