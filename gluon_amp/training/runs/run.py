"""A run from its first line to its last file: the same for images and for text."""

import contextlib
from types import SimpleNamespace

from gluon_amp.training.runs import log
from gluon_amp.training.runs.history import Validation
from gluon_amp.training.runs.outputs import write_config
from gluon_amp.training.runs.report import Reporter
from gluon_amp.training.runs.training import Training


def run(training: Training, reporter: Reporter) -> SimpleNamespace:
    """Train, validate, log, and write the outputs."""
    recipe, keeper = training.recipe, training.keeper
    alone: contextlib.AbstractContextManager = contextlib.nullcontext()
    if keeper.own and not (recipe.eval_only or recipe.dry_run):
        alone = keeper.own.locked()
    quiet = not training.loop.workers.first
    with log.to_stdout(recipe.logging_file, quiet), keeper.interruption.noticing(), alone:
        with keeper.naming_last_good():
            if recipe.dry_run:
                return _try_one(training, reporter)
            last = _train(training, reporter)
        summary = reporter.end(last)
        keeper.interruption.leave_after("the run is over and everything was written")
        return summary


def _try_one(training: Training, reporter: Reporter) -> SimpleNamespace:
    """Make one update, and log the plan and the memory; nothing is saved."""
    loop = training.loop
    loop.max_batches, loop.records = loop.accumulate, log.Records()
    reporter.name_data()
    reporter.begin()
    loop.train(training.batches, 0)
    reporter.tried()
    return SimpleNamespace()


def _train(training: Training, reporter: Reporter) -> Validation:
    """Train the epochs that are left; return the validation of the final network."""
    reporter.name_data()
    position, counts = training.begin()  # before the plan, as it may refuse to resume
    recipe = training.recipe
    if recipe.save_dir and training.loop.workers.first and not recipe.eval_only:
        write_config(recipe)
    reporter.begin()
    if training.recipe.eval_only:
        finished = position.epoch if position.samples else max(position.epoch - 1, 0)
        return training.validate(finished)
    for epoch, result, validation in training.epochs(position, counts):
        reporter.epoch(epoch, result, validation)
    validated = training.history.validated
    # the run may have been over already, and this epoch not validated
    return validated[-1] or training.validate(len(validated) - 1)
