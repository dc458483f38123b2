"""A transformer trains, continues and translates by Sockeye's command line.

The parallel text is generated: the translation of a word is the same word in capital letters. The
losses of the case `train` are logarithms of perplexities. Those of `translate`, after a short
training in float32, are the scores of the translated sentences.
"""

import contextlib
import csv
import io
import math
import random
import sys
import time
from unittest import mock

import sockeye.train
import sockeye.translate

from experiments.clients.shared import CASE, SEED, STEPS, losses, report, seconds, seed_all

seed_all()
UPDATES = 2  # of a step: Sockeye writes the perplexity at each checkpoint
TRAIN = """
    --source train.source --target train.target --output model
    --validation-source dev.source --validation-target dev.target
    --num-layers 1 --num-embed 32 --transformer-model-size 32 --transformer-attention-heads 2
    --transformer-feed-forward-num-hidden 64 --max-seq-len 7 --no-bucketing
    --batch-type sentence --batch-size 32 --initial-learning-rate 0.01 --decode-and-evaluate 0
"""
TRANSLATE = "--models model --input dev.source"


def write_text(name, pairs):
    with open(f"{name}.source", "w") as source, open(f"{name}.target", "w") as target:
        for _ in range(pairs):
            sentence = " ".join(random.choices("abcdef", k=random.randint(2, 6)))
            print(sentence, file=source)
            print(sentence.upper(), file=target)


def command(module, arguments):
    """Run `python -m sockeye...`; return what it prints."""
    argv = [module.__name__, *arguments.split(), "--use-cpu", "--seed", str(SEED)]
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(io.StringIO()) as printed:
        module.main()
    return printed.getvalue()


def right(translated):
    """Return the share of the sentences that are translated as in dev.target."""
    with open("dev.target") as target:
        same = [a == b for a, b in zip(target.read().splitlines(), translated)]
    return sum(same) / len(same)


if CASE == "train":
    write_text("train", 32 * UPDATES * STEPS)
    write_text("dev", 32)
    checkpoints = f"--checkpoint-interval {UPDATES} --max-checkpoints {STEPS // 2}"
    kept = "--keep-last-params 1 --max-num-checkpoint-not-improved -1"
    for _ in range(2):  # the second time it continues
        command(sockeye.train, f"{TRAIN} {checkpoints} {kept}")
    with open("model/metrics") as file:
        metrics = [dict(f.split("=") for f in row[1:]) for row in csv.reader(file, delimiter="\t")]
    losses += [math.log(float(metric["perplexity-train"])) for metric in metrics]
    elapsed = [float(metric["time-elapsed"]) for metric in metrics[: STEPS // 2]]
    seconds += [after - before for before, after in zip(elapsed, elapsed[1:])]
    translated = command(sockeye.translate, TRANSLATE).splitlines()
    perplexity = float(metrics[-1]["perplexity-val"])
    report({"perplexity": perplexity, "right_sentences": right(translated)})
else:
    write_text("train", 3200)
    write_text("dev", STEPS)
    command(sockeye.train, f"{TRAIN} --checkpoint-interval 100 --max-updates 100")
    start = time.perf_counter()
    scored = f"{TRANSLATE} --output-type translation_with_score --beam-size 3"
    lines = command(sockeye.translate, scored).splitlines()
    seconds += [(time.perf_counter() - start) / STEPS] * STEPS
    scores, translated = zip(*(line.split("\t") for line in lines))
    losses += map(float, scores)
    report({"right_sentences": right(translated)})
