"""The checkpoints of a run: which to keep, and from which to resume.

A checkpoint is one `gluon_amp.save_checkpoint` file, named by the position at which the run
resumes. It also holds the results of all epochs, the counts of the unfinished one for each worker,
and what the run trains on. It has no random states: those follow from the seed and the position.
"""

import contextlib
import logging
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from gluon_amp.base.locks import lock
from gluon_amp.base.messages import UsageError
from gluon_amp.checkpoint import load_checkpoint, read_extra, save_checkpoint
from gluon_amp.files import schema
from gluon_amp.files.schema import COUNT, PLAIN, TEXT, Either, check
from gluon_amp.trainer import Trainer
from gluon_amp.training.runs.history import COUNTS, HISTORY, REAL

from mxnet.gluon import Block

logger = logging.getLogger("gluon_amp.training.runs")

NAME = "epoch{:03d}-sample{:08d}.ckpt"
PATTERN = re.compile(r"epoch(\d+)-sample(\d+)\.ckpt")
BEST = "best.ckpt"
LOCK = ".lock"

# What must not change when a run is resumed, with the words for it in messages.
SAME = {
    "model": "the model {}",
    "data": "the data set {}",
    "classes": "{} classes",
    "train_images": "{} training samples",
    "dtype": "--dtype {}",
}
# What must not change either when it is resumed in the middle of an epoch.
SAME_ORDER = {
    "total_batch": "{} samples in an update",
    "seed": "--seed {}",
    "workers": "{} workers",
}

# What a checkpoint holds besides network and trainer; a language model's has one more field.
_PROGRESS = {
    "rate": REAL,
    "history": HISTORY,
    "workers": [{"counts": COUNTS, "statistics": TEXT}],
}
# What whoever uses the network elsewhere has to know, of a run on images
_ABOUT = {
    "image_shape": (COUNT, COUNT, COUNT),
    "class_names": [TEXT],
    "preprocessing": schema.Mapping(TEXT, Either("text or numbers", (TEXT, [REAL]))),
}
# Of a language model: the arguments of `LanguageModel`
_SIZES = {
    "kind": TEXT,
    **dict.fromkeys(("embedding", "hidden", "layers", "heads", "length"), COUNT),
    **dict.fromkeys(("tied", "split_norms"), PLAIN),
    "dropout": REAL,
}
SCHEMA = {
    "position": (COUNT, COUNT),
    "identity": dict.fromkeys((*SAME, *SAME_ORDER), PLAIN),
    "progress": Either(
        "the progress of a run",
        (
            {**_PROGRESS, "about": schema.Optional(_ABOUT)},
            {**_PROGRESS, "state": [[[[REAL]]]], "about": schema.Optional(_SIZES)},
        ),
    ),
}


class SavingError(RuntimeError):
    """A checkpoint cannot be written; the message is one sentence."""


class Position(NamedTuple):
    """Where a run is: samples, and not batches, of an epoch, as the batch size may change."""

    epoch: int
    samples: int

    def first_batch(self, batch: int, epoch: int) -> int:
        """Return the number of the next batch, for these samples in a batch and in an epoch."""
        if self.samples >= epoch:
            return -(-epoch // batch)
        if self.samples % batch:
            raise UsageError(
                f"the checkpoint was written after {self.samples} samples of epoch {self.epoch}, "
                f"which is inside a batch of {batch}: continue with a batch that divides it."
            )
        return self.samples // batch


@dataclass(frozen=True)
class Saved:
    """A checkpoint that has been read, except for the network and the trainer."""

    path: Path
    position: Position
    identity: Dict[str, Any]  # what the run trains on, for the keys of `SAME` and `SAME_ORDER`
    progress: Dict[str, Any]  # whatever else the run restores (see `Checkpoints.save`)

    @classmethod
    def read(cls, path: Path) -> "Saved":
        """Read a checkpoint, which must be complete and that of a run."""
        try:
            extra = read_extra(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
        except ValueError as error:
            raise UsageError(str(error)) from None
        try:
            check(extra, SCHEMA, "extra")
            saved = cls(path, Position(*extra["position"]), extra["identity"], extra["progress"])
            saved._check_lengths()
        except ValueError as error:
            raise UsageError(
                f"{path} is a checkpoint, but not of a run that can be resumed: {error}."
            ) from None
        return saved

    def _check_lengths(self) -> None:
        epochs = len(self.progress["history"]["validated"])
        if epochs != self.position.epoch:
            raise ValueError(f"it is of epoch {self.position.epoch} and has {epochs} validations")
        if len(self.progress["history"].get("averaged", [])) > epochs:
            raise ValueError(f"it has {epochs} validations and more of averaged weights")
        workers = len(self.progress["workers"])
        if workers != (self.identity["workers"] if self.position.samples else 1):
            raise ValueError(f"it has the counts of {workers} workers")

    def check(self, identity: Dict[str, Any]) -> None:
        """Raise `UsageError` if a run with this identity cannot resume from the checkpoint."""
        order = SAME_ORDER if self.position.samples else {}
        for name, words in {**SAME, **order}.items():
            saved, own = self.identity[name], identity[name]
            if saved != own:
                where = ", in the middle of an epoch" if name in order else ""
                raise UsageError(
                    f"{self.path} is of a run with {words.format(saved)}{where}, and this one has "
                    f"{words.format(own)}: resume with the same."
                )

    def load(self, net: Block, trainer: Trainer) -> None:
        """Restore the network and the trainer, which must be those of the checkpoint."""
        # The schedule sets the rate for every batch; equal rates avoid a warning that they differ.
        trainer.set_learning_rate(self.progress["rate"])
        try:
            load_checkpoint(self.path, net, trainer)
        except ValueError as error:
            raise UsageError(str(error)) from None


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints in a folder: the newest `keep`, and the best."""

    folder: Path
    keep: int

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder, and prevent other processes from writing to it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / LOCK, "ab+", buffering=0) as file:
            if lock(file) is False:
                file.seek(0)
                other = file.read().decode().strip()
                raise UsageError(
                    f"another run writes to {self.folder} ({other}): wait for its end, or give "
                    "another --save-dir."
                )
            with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            yield

    def save(
        self,
        net: Block,
        trainer: Trainer,
        position: Position,
        identity: Dict[str, Any],
        progress: Dict[str, Any],
        best: bool = False,
    ) -> Path:
        """Write a checkpoint, then remove the oldest ones until `keep` remain.

        `progress` has the learning rate as ``rate``, and whatever else the run restores. The `best`
        one replaces the best so far and removes no other. After an error, earlier ones are as they
        were.
        """
        path = self.folder / (BEST if best else NAME.format(*position))
        extra: Dict[str, Any] = {"identity": identity, "progress": progress}
        try:
            save_checkpoint(path, net, trainer, position=position, **extra)
        except OSError as error:
            # The reason is in parentheses in save_checkpoint's sentence.
            reason = re.search(r"\((.*)\)", error.strerror or "")
            raise SavingError(
                f"{path} was not written ({reason[1] if reason else error}): earlier checkpoints "
                "are as they were; make room and continue with --resume auto."
            ) from None
        earlier = [] if best else [old for at, old in self.existing() if at < position]
        for old in earlier[: max(0, len(earlier) + 1 - self.keep)]:
            old.unlink()
        return path

    def existing(self) -> List[Tuple[Position, Path]]:
        """Return the checkpoints in the folder, the newest last, without the best."""
        matches = [(PATTERN.fullmatch(path.name), path) for path in self.folder.glob("*.ckpt")]
        return sorted(
            (Position(int(match[1]), int(match[2])), path) for match, path in matches if match
        )

    def check_unused(self) -> None:
        """Raise `UsageError` if a new run would mix its checkpoints with those of another."""
        if self.existing():
            raise UsageError(
                f"{self.folder} holds checkpoints of an earlier run: continue with --resume auto, "
                "or give another --save-dir."
            )

    def check_last(self, saved: Saved) -> None:
        """Raise `UsageError` if the folder holds later checkpoints than the one to resume from."""
        if saved.path.resolve().parent != self.folder.resolve():
            return
        later = [path for at, path in self.existing() if at > saved.position]
        if later:
            raise UsageError(
                f"{self.folder} holds later checkpoints than {saved.path.name}, such as "
                f"{later[-1].name}: move them away, or give another --save-dir."
            )

    def newest(self) -> Optional[Saved]:
        """Return the newest checkpoint that can be read, or None if the folder has none at all."""
        existing = self.existing()
        for _, path in reversed(existing):
            try:
                return Saved.read(path)
            except UsageError as error:
                logger.warning("Skipped: %s", error)
        if existing:
            raise UsageError(
                f"{self.folder} holds {len(existing)} checkpoints and none can be read: give "
                "another --save-dir."
            )
        return None
