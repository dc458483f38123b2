"""Train a transformer with Sockeye's command line, continue, and translate with the model.

The parallel text is generated: the translation of a word is the same word in capital letters.
"""

import contextlib
import csv
import io
import json
import math
import os
import random
import sys
from unittest import mock

import sockeye.train
import sockeye.translate

SEED, STEPS = int(os.environ["SEED"]), int(os.environ["STEPS"])
UPDATES = 2  # of a step: Sockeye writes the perplexity at each checkpoint
random.seed(SEED)

for name, pairs in (("train", 32 * UPDATES * STEPS), ("dev", 32)):
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


for _ in range(2):  # the second time it continues
    command(
        sockeye.train,
        "--source train.source --target train.target --output model"
        " --validation-source dev.source --validation-target dev.target"
        " --num-layers 1 --num-embed 32 --transformer-model-size 32 --transformer-attention-heads 2"
        " --transformer-feed-forward-num-hidden 64 --max-seq-len 7 --no-bucketing"
        " --batch-type sentence --batch-size 32 --initial-learning-rate 0.01 --keep-last-params 1"
        f" --checkpoint-interval {UPDATES} --max-checkpoints {STEPS // 2}"
        " --max-num-checkpoint-not-improved -1 --decode-and-evaluate 0",
    )
with open("model/metrics") as file:
    metrics = [dict(f.split("=") for f in row[1:]) for row in csv.reader(file, delimiter="\t")]

translated = command(sockeye.translate, "--models model --input dev.source")
with open("dev.target") as target:
    sentences = list(zip(target.read().splitlines(), translated.splitlines()))

elapsed = [float(metric["time-elapsed"]) for metric in metrics[: STEPS // 2]]
seconds = sorted(after - before for before, after in zip(elapsed, elapsed[1:]))
print(
    json.dumps(
        {
            "losses": [math.log(float(metric["perplexity-train"])) for metric in metrics],
            "step_seconds": seconds[len(seconds) // 2],
            "extra": {
                "perplexity": float(metrics[-1]["perplexity-val"]),
                "right_sentences": sum(a == b for a, b in sentences) / len(sentences),
            },
        }
    )
)
