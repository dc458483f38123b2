"""Every figure of the documents is recomputed from the values that are committed beside it."""

import argparse
import json
import re
import statistics
from types import SimpleNamespace

import pytest
from experiments.benchmarks.summary import Results
from experiments.photographs.comparisons import MARGINS as OF_PHOTOGRAPHS
from experiments.photographs.comparisons import METRICS, comparison, reference, verdict

from experiments import ablation, zoo_coverage
from experiments.benchmarks import families_report, report
from experiments.benchmarks.families import FAMILIES as NETWORKS
from experiments.benchmarks.families import QUOTIENTS
from experiments.benchmarks.measure import Measured
from experiments.clients import table as clients
from experiments.clients.families import FAMILIES as CLIENTS
from experiments.floor_of_chance import page as floor_of_chance
from experiments.photographs import report as photographs
from gluon_amp.training.tables import render
from gluon_amp.training.tables.statistics import spread
from gluon_amp.training.tables.table import published, restored
from tests import ROOT
from tests.documents.test_documents import FENCE, text_of

BENCHMARKS = ROOT / "docs" / "benchmarks"
RESULTS = ROOT / "docs" / "results"
# Pages with tests of their own: families below, launches in test_launches.py
NOT_TIMED = ("families", "launches", "launches_before")
SUITES = sorted(path for path in BENCHMARKS.rglob("*.json") if path.stem not in NOT_TIMED)
PAGES = [
    "docs/how_it_works.md",
    *sorted(
        f"docs/{folder}/{path.name}"
        for folder in ("guide", "how_to", "api")
        for path in (ROOT / "docs" / folder).glob("*.md")
    ),
]
# where results stand in words and tables, beside README
SHOWING = ["docs/results.md", "docs/speed.md"]
TABLES = sorted(path.parent for path in RESULTS.glob("*/results.json"))


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------ benchmarks


@pytest.mark.parametrize("path", SUITES, ids=lambda path: str(path.relative_to(BENCHMARKS)))
def test_a_benchmark_is_its_samples(path):
    result = load(path)
    for case in result["cases"]:
        assert case["median_seconds"] == statistics.median(case["seconds"])
    for ratio in result["ratios"]:
        assert ratio["median"] == statistics.median(ratio["values"])
    cases = {case["label"]: case for case in result["cases"]}
    for ratio in result["ratios"]:
        over, under = (cases[ratio[name]] for name in ("over", "under"))
        if ratio["figure"] == "seconds":
            values = [a / b for a, b in zip(over["seconds"], under["seconds"])]
            assert ratio["values"] == pytest.approx(values)
        else:
            assert ratio["median"] == pytest.approx(
                over["peak_mebibytes"] / under["peak_mebibytes"]
            )
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    assert page == report.as_markdown(result, f"{path.stem}.png")
    about = result["machine"]
    for fact in ("date", "processor", "python", "mxnet", "numpy", "gluon_amp"):
        assert about[fact] in page
    assert f"`{result['command']}`" in page


@pytest.fixture(scope="module")
def families():
    """families.json, and the measured cases in it."""
    result = load(BENCHMARKS / "families.json")
    measured = [
        Measured(
            SimpleNamespace(**case),
            case["seconds"],
            case["peak_mebibytes"],
            case["parameters"],
            case["flop"],
            case["moved"],
        )
        for case in result["cases"]
    ]
    return result, Results(measured, [network.network for network in NETWORKS], True)


def test_the_families_are_their_samples(families):
    result, results = families
    computed = [(one.ratio.label, one.values) for one in results.summary()]
    written = [(one["label"], one["values"]) for one in result["ratios"]]
    assert [label for label, _ in written[: len(computed)]] == [label for label, _ in computed]
    for (_, ours), (_, theirs) in zip(computed, written):
        assert ours == pytest.approx(theirs)
    tables = families_report.tables(results, result)
    page = "\n\n".join(["# Network families", tables, report.method(result)]) + "\n"
    assert text_of("docs/benchmarks/families.md") == page


def test_the_input_page_is_its_rounds():
    page = text_of("docs/benchmarks/input.md")
    rounds = re.findall(r"^\| \d+ \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert len(rounds) == 7
    for ours, _, theirs, ratio in rounds:
        assert float(ratio) == pytest.approx(int(ours) / int(theirs), abs=0.01)
    medians = [statistics.median(map(float, column)) for column in zip(*rounds)]
    ours, same, theirs, ratio = medians
    assert f"| **median** | **{ours:.0f}** | **{same:.0f}** | **{theirs:.0f}** |" in page
    assert f"| **{ratio:.2f}** |" in page
    assert re.search(r"on \d{4}-\d\d-\d\d, with .*MXNet 1\.9\.1", page)


# --------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("name", [path.name for path in TABLES])
def test_a_table_is_its_runs(name):
    folder = RESULTS / name
    values = load(folder / "results.json")
    table = restored(values)
    computed = json.loads(json.dumps(table.as_dict()))
    assert {key: values[key] for key in computed} == computed
    page = (folder / "results.md").read_text(encoding="utf-8")
    assert page == render.page(table, values["note"], values["command"])
    assert (folder / "results.csv").read_text() == render.as_csv(table)
    for run in table.runs:
        assert run.date and run.versions and run.hardware


def test_the_ablation_is_its_runs():
    values = load(RESULTS / "ablation.json")
    studies = values.pop("studies")
    page = text_of("docs/results/ablation.md")
    seeds = len(next(iter(next(iter(studies.values())).values())))
    margin = float(re.search(r"within ±([\d.]+) points", page)[1])
    output = re.search(r"--output (\S+)`", page)[1]
    options = argparse.Namespace(seeds=seeds, margin=margin, output=output)
    assert page == ablation.page(studies, options, values)


@pytest.mark.parametrize("path", sorted((RESULTS / "floor").glob("*.json")), ids=lambda p: p.stem)
def test_a_floor_is_its_distances(path):
    results = load(path)
    assert results["dataset"] == path.stem
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    assert page == floor_of_chance.page(results, f"{path.stem}.png")


def test_the_coverage_is_its_casts():
    casts = load(RESULTS / "zoo_coverage.json")
    page = text_of("docs/results/zoo_coverage.md")
    lines = [line for line in page.splitlines() if re.match(r"(mx|cv)/", line)]
    assert lines == [zoo_coverage.line(cast) for cast in casts]
    networks = {cast["network"] for cast in casts}
    good = sum(cast["ok"] for cast in casts)
    assert f"{good} of {len(casts)} casts of {len(networks)} networks are good" in page
    assert re.search(r"measured on \d{4}-\d\d-\d\d on .* and MXNet 1\.9\.1", " ".join(page.split()))


def test_the_clients_are_their_losses():
    runs = load(RESULTS / "clients.json")["runs"]
    rows = []
    for family in CLIENTS:
        for case in family.cases:
            key = {"case": f"{family.name}/{case.name}", "steps": case.steps}
            records = {
                dtype: [run for run in runs if {**run, **key, "policy": dtype} == run]
                for dtype in clients.DTYPES
            }
            rows.append(clients.Row(family, case, records))
    assert clients.render(rows) == text_of("docs/results/clients.md")


def test_the_photographs_are_their_folds():
    values = load(RESULTS / "photographs" / "photographs.json")
    assert values["margins"] == OF_PHOTOGRAPHS
    page = text_of("docs/results/photographs/photographs.md")
    assert page == photographs.page(photographs.restored(values), values["about"])


# ------------------------------------------------------------------------- README and other pages


def verdict_of(row):
    """The comparison of a row at its batch."""
    return row["contrasts"][0]["top1"] if row["contrasts"] else None


def rows_of_table(name):
    """The lines of docs/results.md for a table of results."""
    for row in load(RESULTS / name / "results.json")["rows"]:
        about, top1, comparison = row["configuration"], row["top1"], verdict_of(row)
        minus, verdict = "", ""
        if comparison:
            interval = f"{comparison['low']:+.2f} to {comparison['high']:+.2f}"
            minus = f" {comparison['difference']:+.2f} ({interval})"
            verdict = f" {comparison['verdict']}"
        accuracy = f"{top1['mean']:.2f} ± {top1['sd']:.2f} %"
        precision = about["label"].rpartition(", batch ")[0]
        yield f"| {about['batch']} | {precision} | {accuracy} |{minus} |{verdict} |"


def about_table(name, what):
    values = load(RESULTS / name / "results.json")
    rows = values["rows"]
    yield (
        f"{what} for {len(rows[0]['curve'])} epochs with {len(rows[0]['seeds'])} seeds; the margin "
        f"is ±{values['margin']:g} points"
    )


def rows_of_the_photographs():
    results = photographs.restored(load(RESULTS / "photographs" / "photographs.json"))
    for row, folds in results.items():
        accuracy = spread([fold["accuracy"] for fold in folds.values()])
        cells = [row.training.label, row.dtype, f"{accuracy.mean:.2f} ± {accuracy.sd:.2f} %"]
        if row == reference(row):
            cells += ["", "", ""]
        else:
            compared = [comparison(results, row, metric) for metric in METRICS]
            cells += [render.difference(compared[0]), *map(verdict, compared)]
        yield " ".join(f"| {' | '.join(cells)} |".split())
    folds = [fold for each in results.values() for fold in each.values()]
    days = sorted({fold["date"] for fold in folds})
    yield (
        f"{sum(fold['seconds'] for fold in folds) / 60:.0f} CPU minutes on {folds[0]['hardware']}, "
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}"
    )
    for label, margins in OF_PHOTOGRAPHS.items():
        yield f"±{margins['accuracy']:g} points and ±{margins['cross_entropy']:g} nats ({label})"


def rows_of_the_faq():
    for row in published(0.3).rows:
        about = row.configuration
        speed_up = "1" if row.speed_up == 1 else f"{row.speed_up:.2f}×"
        yield (
            f"| {about.batch} | {about.dtype} | {row.top1.mean:.2f} % | "
            f"{render.duration(row.seconds)} | {speed_up} |"
        )


def rows_of_the_ablation():
    cells = []
    for rows in load(RESULTS / "ablation.json")["studies"].values():
        errors = [[run["errors"][-1] for run in runs] for runs in rows.values()]
        means = [spread([100 - error for error in each]) for each in errors]
        # the default has a dynamic scale in each study; the last row lacks the remedy
        cells.append([f"{one.mean:.2f} ± {one.sd:.2f}" for one in (means[0], means[1], means[-1])])
    single, default, without = zip(*cells)
    remedies = ("loss scale", "masters", "pins")
    yield f"top-1 in % over {len(errors[0])} seeds"
    yield f"| float32 | {' | '.join(single)} |"
    yield f"| float16 as by default | {' | '.join(default)} |"
    named = [f"{remedy}: {cell}" for remedy, cell in zip(remedies, without)]
    yield f"| float16 without | {' | '.join(named)} |"


def speed_of(suite, label):
    """The speed of a case relative to another, as on the page of the suite."""
    ratios = {ratio["label"]: ratio for ratio in load(BENCHMARKS / f"{suite}.json")["ratios"]}
    return statistics.median(report.speed(ratios[label])[2])


def rows_of_the_step():
    yield f"| float16, emulated | stock float32 | {speed_of('step', STEP[0]):.2f} |"
    yield f"| bfloat16 | stock float32 | {speed_of('step', STEP[1]):.2f} |"
    yield f"| bfloat16 | `mxnet.contrib.amp` bfloat16 | {speed_of('step', STEP[2]):.2f} |"
    yield (
        "| float16 with a dynamic loss scale | float16 without a loss scale | "
        f"{speed_of('step', STEP[3]):.2f} |"
    )
    check = "gluon_amp / multi_all_finite, float16"
    gradients = load(BENCHMARKS / "overflow_check.json")["cases"][0]["parameters"]
    yield (
        f"| overflow check of {gradients / 1e6:.1f} M gradients | MXNet's `multi_all_finite` | "
        f"{speed_of('overflow_check', check):.0f} |"
    )
    yield f"[{speed_of('amd_epyc/step', STEP[1]):.2f} times](benchmarks/amd_epyc/step.md)"


STEP = (
    "float16 emulated / float32",
    "float32 / bfloat16",
    "contrib.amp bfloat16 / bfloat16",
    "dynamic loss scaling on / off",
)


def mean_of(kind, quotient):
    return speed_of("families", f"{kind}: {quotient}, geometric mean of 8 families")


def range_of(results, quotient):
    """The medians of the bounded families, from the lowest to the highest."""
    found = next(one for one in QUOTIENTS["training"] if one.label == quotient)
    bounded = {network.network for network in NETWORKS if network.bounded}
    medians = [
        statistics.median(values)
        for network, values in results.ratios("training", found).items()
        if network in bounded
    ]
    assert len(medians) == 8
    return f"({min(medians):.2f} to {max(medians):.2f})"


def rows_of_the_families(results):
    plain, peer = "stock float32 / bfloat16", "PyTorch's best / bfloat16"
    yield (
        f"| bfloat16 | stock float32 | {mean_of('training', plain):.2f} "
        f"{range_of(results, plain)} | {mean_of('image', plain):.2f} |"
    )
    own = mean_of("training", "float32 under amp.Trainer / bfloat16")
    yield f"| bfloat16 | float32 under `amp.Trainer` | {own:.2f} | |"
    training = f"{mean_of('training', peer):.2f} {range_of(results, peer)}"
    yield (
        "| bfloat16 | PyTorch 2.14, the faster of float32 and bfloat16 | "
        f"{training} | {mean_of('image', peer):.2f} |"
    )
    half = "float16 / stock float32"
    yield (
        f"| float16, emulated | stock float32 | {mean_of('training', half):.2f} | "
        f"{mean_of('image', half):.2f} |"
    )
    worst = speed_of("families", f"image: {peer}, worst family (mobilenetv3_large)")
    yield f"inference of one image is slower than PyTorch's ({worst:.2f})"


def lines_of_the_changelog(families):
    page = text_of("docs/benchmarks/input.md")
    ours, same, theirs = (float(n) for n in re.findall(r"\*\*(\d+)\*\*", page))
    yield (
        f"{ours / theirs:.1f} times as fast as by ImageRecordIter, which takes one of them; "
        f"{same / theirs:.1f} times with one, too."
    )
    layouts = next(
        one["onednn"]
        for one in families["reorders"]
        if (one["network"], one["kind"]) == ("resnet50_v1", "training")
    )
    yield f"{layouts} changes of layout in a bfloat16 step of ResNet-50."


@pytest.fixture(scope="module")
def figures(families):
    """What the pages of results show, from the committed values."""
    _, results = families
    return [
        *rows_of_table("fashion"),
        *rows_of_table("fashion-formats"),
        *rows_of_table("digits-formats"),
        *rows_of_table("lstm"),
        *about_table("fashion", "A small convolutional network learns Fashion-MNIST"),
        *about_table("fashion-formats", "The same network learns Fashion-MNIST"),
        *about_table("digits-formats", "A small ResNet learns the digits"),
        *about_table("lstm", "A character LSTM"),
        *rows_of_the_photographs(),
        *rows_of_the_faq(),
        *rows_of_the_ablation(),
        *rows_of_the_step(),
        *rows_of_the_families(results),
    ]


def prose(document):
    return " ".join(FENCE.sub("", text_of(document)).split())


def test_the_pages_of_results_show_the_committed_values(figures):
    assert len(figures) > 25
    shown = " ".join(map(prose, SHOWING))
    assert [figure for figure in figures if figure not in shown] == []


def test_the_readme_shows_the_table_of_fashion_mnist():
    figures = [
        *rows_of_table("fashion"),
        *about_table("fashion", "A small convolutional network learns Fashion-MNIST"),
    ]
    assert [figure for figure in figures if figure not in prose("README.md")] == []
    faster = published(0.3).rows[1].speed_up
    assert f"the accuracy of float32, {faster:.2f} times as fast." in prose("README.md")


def test_the_changelog_shows_the_committed_values(families):
    figures = list(lines_of_the_changelog(families[0]))
    assert [figure for figure in figures if figure not in prose("CHANGELOG.md")] == []
    not_measured = "32 images at once instead of 2 times 16"
    assert unexplained(prose("CHANGELOG.md"), [*figures, not_measured]) == []


@pytest.mark.parametrize("document", PAGES)
def test_pages_in_words_have_no_figures(document):
    not_measured = "a float16 loss of 1 times the scale"
    assert unexplained(prose(document), [not_measured]) == []


UNITS = r"%|ms|s|seconds?|minutes?|hours?|h|min|×|times|MiB|GiB|points"
# A number with a unit, or with a deviation; an approximate duration in words.
FIGURE = re.compile(
    rf"\d[\d,.]*(?: ± \d[\d.]*)?[ -]?(?:{UNITS})(?!\w)|± ?\d[\d.]*"
    r"|(?:half|quarter|third|one|two|three|several|many) ?(?:of )?an? ?(?:minute|hour)"
)
DECIMAL = re.compile(r"(?<![\w.-])[+-]?\d+\.\d+(?![\w.]*\.?\d)")


def unexplained(text, figures):
    """The figures in a text that are left when the known ones are taken out."""
    for figure in sorted(figures, key=len, reverse=True):
        text = text.replace(figure, "")
    return FIGURE.findall(text)


@pytest.mark.parametrize("document", ["README.md", *SHOWING])
def test_pages_of_results_show_no_other_figure(document, figures):
    known = ["(95 % interval)", "top-1 in %", f"{published(0.3).rows[1].speed_up:.2f} times"]
    assert unexplained(prose(document), [*figures, *known]) == []


@pytest.mark.parametrize("document", SHOWING)
def test_pages_of_results_have_no_other_decimals(document, figures):
    text = prose(document)
    versions = ["a learning rate of 0.0001", "PyTorch 2.14"]
    for known in [*sorted(figures, key=len, reverse=True), *versions]:
        text = text.replace(known, "")
    assert DECIMAL.findall(text) == []


@pytest.mark.parametrize(
    "text", ["it takes 5 minutes", "97.5 %", "3.2× faster", "1.5 times", "12 ± 3", "8 ms", "2 h"]
)
def test_unexplained_figures_are_noticed(text):
    assert unexplained(text, ["99 %"])
    assert not unexplained(text, [text])
