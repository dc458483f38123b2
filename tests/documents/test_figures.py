"""Every figure of the documents is recomputed from the values that are committed beside it."""

import json
import math
import re
import statistics

import pytest

from experiments import redraw, zoo_coverage
from experiments.benchmarks import families, report
from gluon_amp.training.tables import render
from gluon_amp.training.tables.statistics import spread
from gluon_amp.training.tables.table import published, restored
from tests import ROOT
from tests.documents.test_documents import FENCE, text_of

BENCHMARKS, RESULTS = ROOT / "docs" / "benchmarks", ROOT / "docs" / "results"
TABLES = sorted(path.parent.name for path in RESULTS.glob("*/results.json"))
PAGES = list(redraw.filled())
SHOWING = ["docs/results.md", "docs/speed.md"]  # where results stand in words, beside README


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page[0].relative_to(ROOT / "docs")))
def test_a_page_is_its_values(page):
    path, text, draw, values = page
    assert path.read_text(encoding="utf-8") == text
    if draw:
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    if "ratios" in values:
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
    page = (folder / "results.md").read_text(encoding="utf-8")
    assert page == render.page(table, values["note"], values["command"])
    assert (folder / "results.csv").read_text() == render.as_csv(table)


def test_the_coverage_is_its_casts():
    casts = load(RESULTS / "zoo_coverage.json")
    page = text_of("docs/results/zoo_coverage.md")
    lines = [line for line in page.splitlines() if re.match(r"(mx|cv)/", line)]
    assert lines == [zoo_coverage.line(cast) for cast in casts]
    networks, good = {cast["network"] for cast in casts}, sum(cast["ok"] for cast in casts)
    assert f"{good} of {len(casts)} casts of {len(networks)} networks are good" in page


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


def rows_of_table(name, what):
    """What docs/results.md says of a table of results."""
    values = load(RESULTS / name / "results.json")
    rows = values["rows"]
    for row in rows:
        about, top1 = row["configuration"], row["top1"]
        compared = row["contrasts"][0]["top1"] if row["contrasts"] else None
        minus = " |"
        if compared:
            interval = "{difference:+.2f} ({low:+.2f} to {high:+.2f})".format(**compared)
            minus = f" {interval} | {compared['verdict']}"
        precision, accuracy = about["label"].rpartition(", batch ")[0], "{mean:.2f} ± {sd:.2f} %"
        yield f"| {about['batch']} | {precision} | {accuracy.format(**top1)} |{minus} |"
    epochs, seeds, margin = len(rows[0]["curve"]), len(rows[0]["seeds"]), values["margin"]
    yield f"{what} for {epochs} epochs with {seeds} seeds; the margin is ±{margin:g} points"


def rows_of_the_faq_and_the_ablation():
    for row in published(0.3).rows:
        about = row.configuration
        speed_up = "1" if row.speed_up == 1 else f"{row.speed_up:.2f}×"
        time = f"{row.top1.mean:.2f} % | {render.duration(row.seconds)}"
        yield f"| {about.batch} | {about.dtype} | {time} | {speed_up} |"
    cells = []
    for rows in load(RESULTS / "ablation.json")["studies"].values():
        means = [spread([100 - run["errors"][-1] for run in runs]) for runs in rows.values()]
        # the default has a dynamic scale in each study; the last row lacks the remedy
        cells.append([f"{one.mean:.2f} ± {one.sd:.2f}" for one in (means[0], means[1], means[-1])])
    single, default, without = zip(*cells)
    yield f"top-1 in % over {means[0].count} seeds"
    yield f"| float32 | {' | '.join(single)} |"
    yield f"| float16 as by default | {' | '.join(default)} |"
    remedies = zip(("loss scale", "masters", "pins"), without)
    yield f"| float16 without | {' | '.join(f'{name}: {cell}' for name, cell in remedies)} |"


def speed_of(suite, label):
    """The speed of a case relative to another, as on the page of the suite."""
    return speed_in(load(BENCHMARKS / f"{suite}.json")["ratios"], label)


def rounds_in(ratios, label):
    (ratio,) = (ratio for ratio in ratios if ratio["label"] == label)
    return report.speed(ratio)[2]


def speed_in(ratios, label):
    return statistics.median(rounds_in(ratios, label))


def rows_of_the_speeds():
    for label, case, other in (
        ("float16 emulated / float32", "float16, emulated", "stock float32"),
        ("float32 / bfloat16", "bfloat16", "stock float32"),
        ("contrib.amp bfloat16 / bfloat16", "bfloat16", "`mxnet.contrib.amp` bfloat16"),
        (
            "dynamic loss scaling on / off",
            "float16 with a dynamic loss scale",
            "float16 without a loss scale",
        ),
    ):
        yield f"| {case} | {other} | {speed_of('step', label):.2f} |"
    check = speed_of("overflow_check", "gluon_amp / multi_all_finite, float16")
    gradients = load(BENCHMARKS / "overflow_check.json")["cases"][0]["parameters"]
    what = f"overflow check of {gradients / 1e6:.1f} M gradients"
    yield f"| {what} | MXNet's `multi_all_finite` | {check:.0f} |"
    plain, own, _, peer, best, fused, half = (text for text, *_ in families.QUOTIENTS)
    native = (
        ("bfloat16", "stock float32", plain, {}),
        ("bfloat16", "float32 under `amp.Trainer`", own, {"spread": False, "image": False}),
        ("bfloat16", "eager PyTorch 2.14, the faster of float32 and bfloat16", peer, {}),
        ("float16, emulated", "stock float32", half, {"spread": False}),
    )
    emulated = (
        ("fused_float32", "stock float32", fused, {"image": False}),
        ("the fastest policy", "eager PyTorch 2.14 in float32", best, {}),
        ("float16, emulated", "stock float32", half, {"spread": False}),
        ("bfloat16, emulated", "stock float32", plain, {"spread": False}),
    )
    summaries = {}
    for page, rows in (
        ("families-amx", native),
        ("families", native),
        ("families-avx2", emulated),
        ("families-avx512", emulated),
    ):
        cells, summaries[page] = cells_of(page)
        for case, other, ratio, shown in rows:
            yield f"| {case} | {other} | {cells(ratio, **shown)}"
    for summary in summaries.values():
        rounds = rounds_in(summary, f"training: {best}, geometric mean of 15 families")
        span = f"{min(rounds):.2f} to {max(rounds):.2f}"
        yield f"geometric mean relative to PyTorch is {span}, depending on the round"


def cells_of(page):
    """A function that returns a ratio's cells, in training and with one image, and all ratios."""
    results = families.Results(load(BENCHMARKS / f"{page}.json")["cases"])
    summary, quotients = results.summary(), {text: rest for text, *rest in families.QUOTIENTS}

    def mean(kind, text):
        count = len(results.quotients(kind, *quotients[text][:2]))
        return f"{speed_in(summary, f'{kind}: {text}, geometric mean of {count} families'):.2f}"

    def cells(text, spread=True, image=True):
        found = results.quotients("training", *quotients[text][:2])
        medians = list(map(statistics.median, found.values()))
        ends = f" ({min(medians):.2f} to {max(medians):.2f})" if spread else ""
        return f"{mean('training', text)}{ends} | " + (f"{mean('image', text)} |" if image else "|")

    return cells, summary


def sentences_of_the_readme():
    """What README says of the speeds, and of the tables that others show."""
    results = families.Results(load(BENCHMARKS / "families-amx.json")["cases"])
    stock, peer = (families.QUOTIENTS[place] for place in (0, 3))
    found = results.quotients("training", *stock[1:3])
    speeds = list(map(statistics.median, found.values()))
    label = f"training: {stock[0]}, geometric mean of {len(found)} families"
    mean, ends = speed_in(results.summary(), label), f"({min(speeds):.2f} to {max(speeds):.2f})"
    yield f"{mean:.2f} times as fast as stock float32 {ends}"
    theirs = results.quotients("training", *peer[1:3])
    assert len(found) == len(theirs) == 15  # "fifteen networks", "each of them faster"
    assert all(statistics.median(speeds) > 1 for speeds in theirs.values())
    fashion = load(RESULTS / "fashion" / "results.json")
    contrasts = [row["contrasts"][0]["top1"] for row in fashion["rows"] if row["contrasts"]]
    assert contrasts and all(top1["p_tost"] < 0.05 for top1 in contrasts)  # "equivalent"
    seeds = len(fashion["rows"][0]["seeds"])
    yield f"over {seeds} seeds lie within a margin of ±{fashion['margin']:g} points"
    faster = published(fashion["margin"]).rows[1].speed_up
    yield f"float16 reached the accuracy of float32, {faster:.2f} times as fast."


FASHION = "LeNet with BatchNorm learns Fashion-MNIST"
UNITS = r"%|ms|s|seconds?|minutes?|hours?|h|min|×|times|MiB|GiB|points"
# A number with a unit, or with a deviation; an approximate duration in words.
FIGURE = re.compile(
    rf"\d[\d,.]*(?: ± \d[\d.]*)?[ -]?(?:{UNITS})(?!\w)|± ?\d[\d.]*"
    r"|(?:half|quarter|third|one|two|three|several|many) ?(?:of )?an? ?(?:minute|hour)"
)
DECIMAL = re.compile(r"(?<![\w.-])[+-]?\d+\.\d+(?![\w.]*\.?\d)")


def prose(document):
    return " ".join(FENCE.sub("", text_of(document)).split())


def unexplained(text, known, pattern=FIGURE):
    """The figures in a text that are left when the known ones are taken out."""
    for figure in sorted(known, key=len, reverse=True):
        text = text.replace(figure, "")
    return pattern.findall(text)


def test_the_pages_of_results_show_the_committed_values_and_no_others():
    figures = [
        *rows_of_table("fashion", FASHION),
        *rows_of_table("fashion-formats", "A small convolutional network learns Fashion-MNIST"),
        *rows_of_table("digits-formats", "A small ResNet learns the digits"),
        *rows_of_table("lstm", "A character LSTM"),
        *rows_of_the_faq_and_the_ablation(),
        *rows_of_the_speeds(),
    ]
    shown = " ".join(map(prose, SHOWING))
    assert [figure for figure in figures if figure not in shown] == []
    readme = list(sentences_of_the_readme())
    assert [figure for figure in readme if figure not in prose("README.md")] == []
    assert unexplained(prose("README.md"), readme) == []
    known = [*figures, "(95 % interval)", "top-1 in %"]
    for document in SHOWING:
        assert unexplained(prose(document), known) == [], document
    versions = ["a learning rate of 0.0001", "PyTorch 2.14", "2511.10909"]
    for document in SHOWING:
        assert unexplained(prose(document), [*figures, *versions], DECIMAL) == [], document


def test_the_changelog_and_the_page_on_leaving_have_no_other_figures():
    ours, same, theirs = input_medians()
    rows = load(BENCHMARKS / "families.json")["reorders"]
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
