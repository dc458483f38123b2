"""What the training scripts share: errors as one sentence, signals and broken pipes as statuses."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from gluon_amp.command_line import UsageError
from gluon_amp.data import DataError
from gluon_amp.distributed.workers import LostError
from gluon_amp.recipes.checkpoints import SavingError
from gluon_amp.recipes.interruption import RunInterruptedError
from gluon_amp.recipes.loop import TrainingError
from gluon_amp.recipes.recipe import Recipe
from gluon_amp.recipes.run import train
from gluon_amp.recipes.speed import benchmark, test_io

Read = Callable[[Optional[Sequence[str]]], Tuple[Recipe, Dict[str, Any]]]


def run(read: Read, arguments: Optional[Sequence[str]] = None) -> int:
    """Do what a command line says.

    Parameters
    ----------
    read : callable
        Turns the command line into a recipe.
    arguments : sequence of str, optional
        Those of the process, if not given.

    Returns
    -------
    int
        The status: 0, or 2 where the options cannot be followed, 1 where training failed, 128 and
        the signal's number where one ended the run.
    """
    return guarded(lambda: _train_images(*read(arguments)))


def _train_images(recipe: Recipe, given: Dict[str, Any]) -> None:
    if recipe.benchmark or recipe.test_io:
        measure = benchmark if recipe.benchmark else test_io
        print(json.dumps(measure(recipe, given), indent=2))
        return
    train(recipe, given)


def guarded(work: Callable[[], None]) -> int:
    """Do what a script is for; return the status as `run` does."""
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # else Module's executors tell of oneDNN
    try:
        work()
        sys.stdout.flush()
    except (UsageError, DataError) as error:
        return _tell(error, 2)
    except (TrainingError, SavingError, LostError, FloatingPointError) as error:
        return _tell(error, 1)
    except RunInterruptedError as error:
        return _tell(error, error.status)
    except KeyboardInterrupt:
        return _tell("interrupted before training began: nothing was saved.", 130)
    except BrokenPipeError:
        # who read the output has gone; Python would fail once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


def _tell(sentence: object, status: int) -> int:
    print(f"{Path(sys.argv[0]).name}: {sentence}", file=sys.stderr)
    return status
