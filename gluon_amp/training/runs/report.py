"""What a run tells: its plan, a line of each epoch, its results, and the files with them."""

import json
import math
import textwrap
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from gluon_amp.base import hardware
from gluon_amp.base.messages import scale_text
from gluon_amp.files import atomic
from gluon_amp.inspection.doctor.advice import about_load
from gluon_amp.policy import Policy
from gluon_amp.trainer.loss_scale import NoLossScale
from gluon_amp.training.command_line import WIDTH
from gluon_amp.training.runs import log
from gluon_amp.training.runs.building import optimizer_options
from gluon_amp.training.runs.devices import is_emulated, other_recommended
from gluon_amp.training.runs.history import EpochResult, Validation
from gluon_amp.training.runs.loop import WAITED_MUCH
from gluon_amp.training.runs.outputs import Output, save_parameters, saving, write_outputs
from gluon_amp.training.runs.training import Training

import mxnet as mx

DEFAULT = ", as no --dtype was given"
NOT_KEPT = "Without --save-dir DIR, this run saves neither its network nor checkpoints."

_EMULATED = {
    "float16": "emulated on this CPU: the roundings of float16, not the speed of a GPU",
    "bfloat16": "emulated on this CPU: the roundings of bfloat16, not the speed of oneDNN",
}


def arithmetic(policy: Policy, emulated: bool) -> str:
    """Return in words how a policy runs."""
    if policy.studies:
        return "emulated on this CPU for study: its speed is not that of a device"
    return _EMULATED[policy.compute_dtype] if emulated else "native"


def table(rows: Iterable[Tuple[str, object]]) -> str:
    """Return names and texts in two columns, `WIDTH` characters wide."""
    texts = [(name, str(text)) for name, text in rows]
    indent = max(len(name) for name, _ in texts) + 2
    return "\n".join(
        textwrap.fill(
            text, WIDTH, initial_indent=name.ljust(indent), subsequent_indent=" " * indent
        )
        for name, text in texts
    )


@dataclass
class Reporter:
    """Tells of a training; images and text differ in what raises `NotImplementedError` here."""

    recommends = False  # a faster dtype, if there is one

    training: Training
    observed: Dict[str, str]  # the dtypes that the network really uses
    devices: Sequence[mx.Context]
    total: int  # images, or streams of text, in one update
    started: float  # by `time.perf_counter`

    def __post_init__(self) -> None:
        self.recipe, self.data = self.training.recipe, self.training.data
        self.loop, self.engine = self.training.loop, self.training.loop.engine
        self.policy = Policy(self.recipe.policy)
        self.emulated = is_emulated(self.policy, self.devices)
        self._began, self._epochs = time.perf_counter(), 0  # of this process

    def plan(self) -> List[Tuple[str, object]]:
        """Return names and texts of what is going to happen."""
        raise NotImplementedError

    def summary(self, last: Validation) -> SimpleNamespace:
        """Return the results of a run that ended with this validation: `results` and more."""
        raise NotImplementedError

    def scores(self, summary: SimpleNamespace) -> List[Tuple[str, object]]:
        """Return names and texts of the scores of the last validation."""
        raise NotImplementedError

    def speed(self, summary: SimpleNamespace) -> str:
        """Return in words how fast it was."""
        raise NotImplementedError

    def outputs(self, summary: SimpleNamespace) -> List[Output]:
        """Return the files to write at the end, the most important first."""
        path = self.recipe.summary_json
        return [Output(partial(write_summary, summary, path))] if path else []

    def name_data(self) -> None:
        """Log which data are used, and why, where no option names them."""
        if self.recipe.notice:
            log.logger.info("%s\n", self.recipe.notice)

    def begin(self) -> None:
        """Log the plan, what is unusual about it, and the line above those of the epochs."""
        log.logger.info("%s\n", table(self.plan()))
        busy = about_load(hardware.load_average(), hardware.count_all_cores())
        if busy:
            log.logger.info("%s\n", table([("WARNING", busy)]))
        recommended = other_recommended(self.policy, self.devices)
        if recommended and self.recommends:
            log.logger.info("%s\n", recommended)
        if not (self.recipe.save_dir or self.recipe.eval_only):
            log.logger.info("%s\n", NOT_KEPT)
        self._began = time.perf_counter()

    def epoch(self, epoch: int, result: EpochResult, validation: Optional[Validation]) -> None:
        """Log the line of an epoch."""
        self._epochs += 1
        where = log.place(epoch, self.recipe.num_epochs)
        log.logger.info("%s", log.line(where, self.values(epoch, result, validation)))

    def tried(self) -> None:
        """Log the memory of ``--dry-run``."""
        memory = f"{hardware.peak_mebibytes():,.0f} MiB of this machine's memory"
        sentence = (
            f"One update, of a batch of {self.training.total_batch}, took {memory}; a whole run "
            "takes about as much. Nothing was saved."
        )
        log.logger.info("%s", textwrap.fill(sentence, WIDTH))

    def end(self, last: Validation) -> SimpleNamespace:
        """Log the results and write the files; return the results."""
        summary = self.summary(last)
        self.loop.records.close()
        log.logger.info("\n%s", table(self._results_in_words(summary)))
        if self.loop.workers.first:
            write_outputs(self.outputs(summary))
            if not self.recipe.eval_only:
                folder = self.recipe.save_dir
                kept = f"Checkpoints and the network are in {folder}." if folder else NOT_KEPT
                plot = self.recipe.mapping.get("plot")
                log.logger.info("\n%s%s", kept, f" The errors are drawn in {plot}." if plot else "")
        return summary

    def _results_in_words(self, summary: SimpleNamespace) -> List[Tuple[str, object]]:
        scale = "none" if summary.loss_scale is None else f"{summary.loss_scale:g}"
        study = " for study" if self.policy.studies else ""
        how = f", emulated{study}" if self.emulated else ""
        scores = self.scores(summary)
        if self.training.averaged:
            decay = self.recipe.ema_decay
            scores.append(("average", f"{summary.ema_top1:.2f} % top-1, decay {decay!r}"))
        epochs = f"{summary.epochs} epoch{'s' * (summary.epochs != 1)}"
        return [
            ("model", f"{summary.model} on {summary.data}"),
            ("dtype", f"{summary.dtype}{how}"),
            *scores,
            ("loss scale", f"{scale}, {summary.skipped_steps} of {summary.steps} steps skipped"),
            ("speed", self.speed(summary)),
            ("time", f"{summary.seconds:.1f} s, {epochs}"),
        ]

    def values(
        self, epoch: int, result: EpochResult, validation: Optional[Validation]
    ) -> Dict[str, Optional[str]]:
        """Return what the line of an epoch has, by name; None is left out."""
        loop, scale, averaged = self.loop, self.engine.loss_scale, self.training.averaged
        share = result.waited / result.seconds
        left = (self.recipe.num_epochs - epoch - 1) / self._epochs
        return {
            "loss": f"{result.loss:.4g}",
            "top_1": log.percent(validation.top1) if validation else None,
            "average": log.percent(averaged.top1) if validation and averaged else None,
            "lr": f"{loop.schedule(epoch, loop.count(self.training.batches) - 1):.4g}",
            "_speed": f"{result.images_per_second:,.0f} {loop.unit}/s",
            "ETA": log.duration(left * (time.perf_counter() - self._began)) if left else None,
            "scale": None if isinstance(scale, NoLossScale) else scale_text(scale.scale),
            "skipped": f"{result.skipped} steps" if result.skipped else None,
            "waited": f"{100 * share:.0f} % for data" if share > WAITED_MUCH else None,
        }

    def optimizer_in_words(self) -> str:
        """Describe the optimizer and its loss scale for the plan."""
        options = [f"{k} {v:g}" for k, v in optimizer_options(self.recipe).items()]
        scale = self.engine.loss_scale
        scales = "none" if isinstance(scale, NoLossScale) else f"{scale.scale:g} to begin with"
        return ", ".join([self.recipe.optimizer, *options, f"loss scale {scales}"])

    @property
    def by_default(self) -> str:
        """Says that the dtype is the default, if it is."""
        return (
            ""
            if self.recipe.mapping["dtype"] or self.recipe.policy != self.recipe.dtype
            else DEFAULT
        )

    def average_in_words(self) -> str:
        """Describe the average of the weights for the plan; empty without one."""
        decay = self.recipe.ema_decay
        return "" if decay is None else f"average with decay {decay!r}"

    def results(self, last: Validation) -> Dict[str, Any]:
        """Return the results of images and of text, by their names in ``--summary-json``."""
        history, scale = self.training.history, self.engine.loss_scale
        trained = history.trained
        validated = history.validated or [last]  # --eval-only with an untrained network
        seconds = sum(result.seconds for result in trained)
        samples = sum(result.images for result in trained)
        return {
            "model": self.recipe.model,
            "data": self.data.name,
            "dtype": self.recipe.policy,  # the requested one
            "observed_dtypes": self.observed,
            "emulated": self.emulated,
            "devices": ", ".join(map(str, self.devices)),
            "batch_size": self.recipe.batch_size,
            "total_batch": self.total,
            "epochs": len(history.validated),  # that the network was trained
            "lr": self.loop.schedule.rate,
            "seed": self.recipe.seed,
            "top1": 100 * last.top1,  # percent of the validation images that can be read
            "top5": 100 * last.top5,
            "top1_by_epoch": [None if v is None else 100 * v.top1 for v in validated],
            "cross_entropy": _finite(last.cross_entropy),  # nats
            "cross_entropy_by_epoch": [v and _finite(v.cross_entropy) for v in validated],
            "validated": last.images,
            "val_images": self.data.val_images,
            "train_images": self.data.train_images,
            "train_loss": _finite(trained[-1].loss) if trained else None,
            "loss_scale": None if isinstance(scale, NoLossScale) else scale.scale,
            "skipped_steps": self.loop.skipped,
            "steps": self.loop.steps,
            "images_per_second": samples / seconds if seconds else None,  # without validation
            "peak_mebibytes": hardware.peak_mebibytes(),
            "train_seconds": seconds,
            "seconds": time.perf_counter() - self.started,
            **self._averaged_results(),
        }

    def _averaged_results(self) -> Dict[str, Any]:
        """Return what ``--ema-decay`` adds to the results: those of the averaged weights."""
        last = self.training.averaged
        if last is None:
            return {}
        averaged = self.training.history.averaged or [last]
        return {
            "ema_decay": self.recipe.ema_decay,
            "ema_top1": 100 * last.top1,
            "ema_top5": 100 * last.top5,
            "ema_top1_by_epoch": [None if v is None else 100 * v.top1 for v in averaged],
            "ema_cross_entropy": _finite(last.cross_entropy),
        }

    def parameter_outputs(self, path: Path) -> List[Output]:
        """Return the files of the trained parameters, and of their average as ``NAME-ema``."""
        save, average = partial(save_parameters, self.engine.net), self.training.average
        outputs = [Output(partial(save, path))]
        if average:

            def save_average() -> None:
                with average.applied():
                    save(path.with_name(f"{path.stem}-ema{path.suffix}"))

            outputs.append(Output(save_average))
        return outputs


def write_summary(summary: SimpleNamespace, path: Path) -> None:
    """Write results as JSON, completely or not at all."""
    text = json.dumps(vars(summary), indent=2, ensure_ascii=False) + "\n"
    with saving(f"--summary-json {path}"):
        atomic.write(path, text.encode())


def _finite(value: float) -> Optional[float]:
    """Return the value, or None if it is infinite or NaN, which JSON does not have."""
    return value if math.isfinite(value) else None
