"""Tables for the plan of a run and its summary; the summary is also written as JSON."""

import json
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Dict, Iterable, List, Tuple

from gluon_amp.files import atomic
from gluon_amp.policy import Policy
from gluon_amp.training.command_line import WIDTH
from gluon_amp.training.runs.outputs import saving

OBSERVED_NAMES = {
    "conv_weight": "conv weights",
    "conv_compute": "computed in",
    "batchnorm": "BatchNorm",
    "logits": "logits",
    "loss": "loss",
}
_EMULATED = {
    "float16": "emulated on this CPU: the roundings of float16, not the speed of a GPU",
    "bfloat16": "emulated on this CPU: the roundings of bfloat16, not the speed of oneDNN",
}


def arithmetic(policy: Policy, emulated: bool) -> str:
    """Return in words how a policy runs."""
    if policy.studies:
        return "emulated on this CPU for study: its speed is not that of a device"
    return _EMULATED[policy.compute_dtype] if emulated else "native"


def dtypes_in_words(observed: Dict[str, str]) -> str:
    """Return observed dtypes in words, in the order of `OBSERVED_NAMES`."""
    return ", ".join(f"{name} {observed[key]}" for key, name in OBSERVED_NAMES.items())


def table(rows: Iterable[Tuple[str, object]]) -> str:
    """Return names and texts in two columns, `WIDTH` characters wide."""
    rows = [(name, str(text)) for name, text in rows]
    indent = max(len(name) for name, _ in rows) + 2
    return "\n".join(
        textwrap.fill(
            text, WIDTH, initial_indent=name.ljust(indent), subsequent_indent=" " * indent
        )
        for name, text in rows
    )


class Summary(SimpleNamespace):
    """The results of a run, by name: `Training.results` and what images or text add to them.

    A subclass defines `scores`, rows for the last validation, and `speed`, in words.
    """

    def __str__(self) -> str:
        scale = "none" if self.loss_scale is None else f"{self.loss_scale:g}"
        study = " for study" if Policy(self.dtype).studies else ""
        how = f", emulated{study}" if self.emulated else ""
        return table(
            [
                ("model", f"{self.model} on {self.data}"),
                ("dtype", f"{self.dtype}{how}"),
                *self.scores(),
                *self.averaged(),
                ("loss scale", f"{scale}, {self.skipped_steps} of {self.steps} steps skipped"),
                ("speed", self.speed()),
                ("time", f"{self.seconds:.1f} s, {self.epochs} epoch{'s' * (self.epochs != 1)}"),
            ]
        )

    def averaged(self) -> List[Tuple[str, object]]:
        """Return the row of ``--ema-decay``, if there is one."""
        decay = vars(self).get("ema_decay")
        return (
            [] if decay is None else [("average", f"{self.ema_top1:.2f} % top-1, decay {decay!r}")]
        )

    def write(self, path: Path) -> None:
        """Write them as JSON, completely or not at all."""
        text = json.dumps(vars(self), indent=2, ensure_ascii=False) + "\n"
        with saving(f"--summary-json {path}"):
            atomic.write(path, text.encode())


class ImageSummary(Summary):
    """The results of a run on images."""

    def scores(self) -> List[Tuple[str, object]]:
        best = f"best {self.best_top1:.2f} % (epoch {self.best_epoch})"
        unreadable = f", {self.unreadable} unreadable" if self.unreadable else ""
        return [
            ("observed", dtypes_in_words(self.observed_dtypes)),
            ("top-1", f"{self.top1:.2f} %, {best}"),
            ("top-5", f"{self.top5:.2f} %"),
            ("validated", f"{self.validated}/{self.val_images} images{unreadable}"),
        ]

    def speed(self) -> str:
        if self.images_per_second is None:
            return "nothing was trained"
        waited = f"waited for data {100 * self.waited_share:.0f} % of the time"
        return f"{self.images_per_second:.1f} training images/s, {waited}"
