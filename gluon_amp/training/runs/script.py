"""What the training commands share: each error is one sentence, and has an exit status."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

from gluon_amp.base.messages import UsageError
from gluon_amp.base.parameter_server import LostError
from gluon_amp.base.startup import waiting
from gluon_amp.training.command_line import status_of
from gluon_amp.training.runs.checkpoints import SavingError
from gluon_amp.training.runs.images import train
from gluon_amp.training.runs.interruption import RunInterruptedError
from gluon_amp.training.runs.loop import TrainingError
from gluon_amp.training.runs.options import Options
from gluon_amp.training.runs.recipe import Recipe
from gluon_amp.training.runs.speed import loading_speed, training_speed
from gluon_amp.training.workers.stores import naming_lost_workers

FAILURES = (TrainingError, SavingError, LostError, FloatingPointError, RunInterruptedError)

Read = Callable[[Optional[Sequence[str]], Optional[str]], Any]


def on_images(recipe: Recipe) -> None:
    """Train, or measure what ``--benchmark`` or ``--test-io`` asks for."""
    if recipe.benchmark:
        print(json.dumps(training_speed(recipe), indent=2))
    elif recipe.test_io:
        print(json.dumps(loading_speed(recipe), indent=2))
    else:
        train(recipe)


def run(
    read: Read,
    arguments: Optional[Sequence[str]] = None,
    prog: Optional[str] = None,
    work: Callable[[Any], object] = on_images,
) -> int:
    """Do the work of the recipe that `read` returns of the arguments; return the exit status."""

    def follow() -> None:
        recipe = read(arguments, prog)
        apply_wait_policy(recipe, arguments)
        work(recipe)

    return guarded(follow, prog)


def apply_wait_policy(recipe: Options, arguments: Optional[Sequence[str]]) -> None:
    """Start the program anew with its ``--wait-policy``; see `gluon_amp.base.startup.waiting`."""
    own = arguments is None or list(arguments) == sys.argv[len(sys.argv) - len(arguments) :]
    if recipe.wait_policy and not own and waiting.VARIABLE not in os.environ:
        raise UsageError(
            f"--wait-policy {recipe.wait_policy} is for a process of its own: set "
            f"{waiting.VARIABLE} before MXNet is imported."
        )
    waiting.apply(recipe.wait_policy)


def guarded(work: Callable[[], None], prog: Optional[str] = None) -> int:
    """Call the function that does the work of a command; return the exit status, as `run` does."""
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # else Module's executors print a line

    def guard() -> None:
        try:
            with naming_lost_workers():
                work()
        except KeyboardInterrupt:
            nothing = "interrupted before training began: nothing was saved."
            raise KeyboardInterrupt(nothing) from None

    return status_of(prog or Path(sys.argv[0]).name, guard, FAILURES)
