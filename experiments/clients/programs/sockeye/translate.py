"""Translate with Sockeye's command line, after a short training in float32.

The losses are the scores of the translated sentences, negative logarithms of their probabilities.
"""

import contextlib
import io
import json
import os
import random
import sys
import time
from unittest import mock

import sockeye.train
import sockeye.translate

SEED, SENTENCES = int(os.environ["SEED"]), int(os.environ["STEPS"])
random.seed(SEED)

for name, pairs in (("train", 3200), ("dev", SENTENCES)):
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


command(
    sockeye.train,
    "--source train.source --target train.target --output model"
    " --validation-source dev.source --validation-target dev.target"
    " --num-layers 1 --num-embed 32 --transformer-model-size 32 --transformer-attention-heads 2"
    " --transformer-feed-forward-num-hidden 64 --max-seq-len 7 --no-bucketing"
    " --batch-type sentence --batch-size 32 --initial-learning-rate 0.01"
    " --checkpoint-interval 100 --max-updates 100 --decode-and-evaluate 0",
)
start = time.perf_counter()
lines = command(
    sockeye.translate,
    "--models model --input dev.source --output-type translation_with_score --beam-size 3",
).splitlines()
seconds = time.perf_counter() - start
scores, translated = zip(*(line.split("\t") for line in lines))
with open("dev.target") as target:
    right = sum(a == b for a, b in zip(target.read().splitlines(), translated))

print(
    json.dumps(
        {
            "losses": [float(score) for score in scores],
            "step_seconds": seconds / SENTENCES,
            "extra": {"right_sentences": right / SENTENCES},
        }
    )
)
