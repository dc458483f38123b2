"""What the families suite says: ratios of each network, their means, and the distance to limits."""

import math
import statistics
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from experiments.benchmarks import families
from experiments.benchmarks.families import BFLOAT16, COPY_RATE, PRODUCT_RATE, QUOTIENTS, Quotient
from experiments.benchmarks.measure import Measured, MeasuredRatio
from experiments.benchmarks.suites import Ratio

# Values of a ratio in each round
Values = List[float]


class Results:
    """The measured cases of the families suite."""

    def __init__(self, measured: Iterable[Measured], networks: Sequence[str], usual_sizes: bool):
        self.by_label = {one.case.label: one for one in measured}
        self.networks = networks
        self.usual_sizes = usual_sizes

    def find(self, network: str, kind: str, variant: str) -> Optional[Measured]:
        """Return a measured case; None if it was not measured or failed."""
        return self.by_label.get(families.label(network, kind, variant))

    def ratio(self, network: str, kind: str, quotient: Quotient) -> Optional[Values]:
        """Return a ratio in each round; None if a case is missing."""
        over = [self.find(network, kind, variant) for variant in quotient.over]
        fastest = min(filter(None, over), key=lambda one: one.median, default=None)
        under = self.find(network, kind, quotient.under)
        if fastest is None or under is None:
            return None
        return [a / b for a, b in zip(fastest.seconds, under.seconds)]

    def ratios(self, kind: str, quotient: Quotient) -> Dict[str, Values]:
        """Return a ratio of all networks that have it."""
        found = {network: self.ratio(network, kind, quotient) for network in self.networks}
        return {network: values for network, values in found.items() if values}

    def summary(self) -> List[MeasuredRatio]:
        """Return the means and worst values of every ratio, with bounds at the usual sizes."""
        rows: List[MeasuredRatio] = []
        for kind, quotients in QUOTIENTS.items():
            for quotient in quotients:
                rows += self._rows(kind, quotient, self.ratios(kind, quotient))
        if self.usual_sizes:
            return rows
        return [MeasuredRatio(one.ratio._replace(must=None, aim=None), one.values) for one in rows]

    def _rows(self, kind: str, quotient: Quotient, found: Dict[str, Values]) -> List[MeasuredRatio]:
        def row(text: str, values: Values, bounds: Tuple) -> MeasuredRatio:
            text = f"{kind}: {quotient.label}, {text}"
            over = " or ".join(quotient.over)
            larger = quotient.larger_is_better
            ratio = Ratio(text, over, quotient.under, *bounds, larger_is_better=larger)
            return MeasuredRatio(ratio, values)

        rows = []
        network, *bounds = quotient.single
        if network in found and bounds != [None, None]:
            rows.append(row(network, found[network], tuple(bounds)))
        bounded = {n: v for n, v in found.items() if families.find(n).bounded}
        for chosen, limits in ((bounded, quotient.mean), (found, (None, None))):
            text = f"geometric mean of {len(chosen)} families"
            if len(chosen) > 1 and not (rows and rows[-1].ratio.label.endswith(text)):
                rows.append(row(text, geometric_means(chosen.values()), limits))
        if len(found) > 1:
            choose = min if quotient.larger_is_better else max
            worst = choose(found, key=lambda network: statistics.median(found[network]))
            rows.append(row(f"worst family ({worst})", found[worst], quotient.worst))
        return rows

    def rates(self) -> Dict[str, float]:
        """Return the operations and bytes per second of what bounds a network, if measured."""
        products, copies = self.by_label.get(PRODUCT_RATE), self.by_label.get(COPY_RATE)
        if products is None or copies is None:
            return {}
        return {"flop": products.flop / products.median, "moved": copies.moved / copies.median}

    def limits(self) -> List[Dict[str, Any]]:
        """Return, for each network and kind, the time of its products and copies at the rates."""
        rates = self.rates()
        found = [
            (network, kind, self.find(network, kind, BFLOAT16))
            for kind in QUOTIENTS
            for network in self.networks
        ]
        return [
            {
                "network": network,
                "kind": kind,
                "flop": one.flop,
                "moved": one.moved,
                "product_seconds": one.flop / rates["flop"],
                "copy_seconds": one.moved / rates["moved"],
                "seconds": one.median,
            }
            for network, kind, one in found
            if one is not None and rates
        ]


def geometric_means(ratios: Iterable[Values]) -> Values:
    """Return the geometric mean of several ratios in each round."""
    return [math.exp(statistics.fmean(map(math.log, values))) for values in zip(*ratios)]
