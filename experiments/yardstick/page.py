"""The parts of docs/results/yardstick.md, and its figure."""

from pathlib import Path
from statistics import median
from typing import Any, Dict, List

from experiments import pages
from experiments.yardstick.measure import POLICIES
from gluon_amp.inspection.figures import COLOURS
from gluon_amp.training.tables.figure import new_figure, styled

STATES = ("initial", "trained")
COLUMNS = 5  # of panels


def parts(values: pages.Values) -> pages.Parts:
    """Return the parts of the page."""
    networks = values["networks"]
    seconds = sum(network["seconds"] for network in networks.values())
    checks = [network[state]["check"] for network in networks.values() for state in STATES]
    return {
        "gradients": gradients(networks),
        "outputs": outputs(networks),
        "check": f"{min(checks):.0f} to {max(checks):.0f} dB",
        "count": f"{len(networks)}",
        "tanh": both(networks, "dense, 12 layers, tanh"),
        "relu": both(networks, "dense, 12 layers, ReLU"),
        "steps": f"{values['steps']} steps",
        "measured": f"{pages.measured(values)}. It took {seconds / 60:.1f} CPU minutes",
    }


def both(networks: Dict[str, Any], name: str) -> str:
    """Return the medians of a trained network in float16 and in bfloat16."""
    found = networks[name]["trained"]["formats"] if name in networks else {}
    return " and ".join(
        f"{median(found[each]['layers']):.0f} dB" for each in ("float16", "bfloat16") if found
    )


def gradients(networks: Dict[str, Any]) -> str:
    """Return the table of the gradients: the median dB of the layers, and that of `amp.watch`."""
    lines = []
    for name, network in networks.items():
        cells = []
        for each in POLICIES:
            medians = [median(network[state]["formats"][each]["layers"]) for state in STATES]
            watched = network["trained"]["watch"].get(each)
            watch = f" ({median(watched):.0f})" if watched else ""
            cells.append(" / ".join(f"{round(value)}" for value in medians) + watch)
        lines.append([name, *cells])
    return pages.table(["network", *POLICIES], lines)


def outputs(networks: Dict[str, Any]) -> str:
    """Return the table of outputs that a change of the computation changes."""
    found: Dict[tuple, List[Dict]] = {}
    for network in networks.values():
        for dtype, changes in network["outputs"].items():
            for change, effect in changes.items():
                found.setdefault((dtype, change), []).append(effect)
    lines = []
    for place, effects in found.items():
        same = sum(effect["same"] == 1 for effect in effects)
        classes = sum(effect["classes"] for effect in effects)
        cells = [
            f"{same} of {len(effects)}",
            f"{min(effect['decibels'] for effect in effects):.0f}",
            f"{classes} of {sum(effect['of'] for effect in effects):,}",
        ]
        lines.append([*place, *cells])
    head = ["dtype", "computed", "networks with the same bits", "lowest dB", "other classes"]
    return pages.table(head, lines, words=2)


@styled()
def draw(values: pages.Values, path: Path) -> None:
    """Draw dB by layer, a panel for each trained network; dotted lines are `amp.watch`'s."""
    networks = values["networks"]
    figure = new_figure(14, 6.4)
    panels = figure.subplots(-(-len(networks) // COLUMNS), COLUMNS, sharey=True, squeeze=False).flat
    for panel in panels[len(networks) :]:
        panel.set_axis_off()
    for panel, (name, network) in zip(panels, networks.items()):
        found = network["trained"]
        numbers = range(1, len(network["layers"]) + 1)
        marker = "o" if len(numbers) < 15 else ""
        for each in POLICIES:
            style = {"color": COLOURS[each], "linewidth": 1.4, "marker": marker, "markersize": 3}
            panel.plot(numbers, found["formats"][each]["layers"], label=each, **style)
            if each in found["watch"]:
                dotted = {**style, "marker": "", "linestyle": ":"}
                panel.plot(numbers, found["watch"][each], **dotted)
        panel.set_title(name, fontsize=9)
        panel.xaxis.get_major_locator().set_params(integer=True)
    figure.supxlabel("layer with weights, from the input to the output")
    figure.supylabel("signal to noise of the gradient (dB)")
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    figure.savefig(path)
