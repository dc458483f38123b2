"""Train an AWD-LSTM language model, as GluonNLP 0.10's `word_language_model.py` does.

The text is generated: each word has four words that may follow it, of which the first is likely.
"""

import math
import random

import gluonnlp as nlp
import numpy as np

from experiments.clients.shared import STEPS, batches, losses, report, seed_all

import mxnet as mx
from mxnet import autograd, gluon

seed_all()

WORDS, BPTT, BATCH, CLIP, ALPHA, BETA = 24, 16, 16, 0.25, 2, 1
FOLLOWERS = [[(7 * word + 11 * i * i + 3) % WORDS for i in range(4)] for word in range(WORDS)]
words = [0]
for _ in range(BATCH * (STEPS * BPTT + 1)):
    words.append(random.choices(FOLLOWERS[words[-1]], weights=[12, 2, 1, 1])[0])

vocabulary = nlp.Vocab(nlp.data.count_tokens(f"w{word}" for word in words))
dataset = gluon.data.SimpleDataset([f"w{word}" for word in words])
batchify = nlp.data.batchify.CorpusBPTTBatchify(vocabulary, BPTT, BATCH, last_batch="discard")
text = batchify(dataset)

model = nlp.model.train.AWDRNN(
    "lstm", len(vocabulary), embed_size=48, hidden_size=64, num_layers=2, tie_weights=True,
    dropout=0.1, weight_drop=0.2, drop_h=0.1, drop_i=0.1, drop_e=0.05,
)  # fmt: skip
model.initialize(mx.init.Xavier())
model.hybridize(static_alloc=True)
cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
activation = nlp.loss.ActivationRegularizationLoss(ALPHA)
temporal_activation = nlp.loss.TemporalActivationRegularizationLoss(BETA)
optimizer_params = {"learning_rate": 10, "wd": 1.2e-6}
trainer = gluon.Trainer(model.collect_params(), "sgd", optimizer_params)
parameters = model.collect_params().values()


def detach(states):
    if isinstance(states, (list, tuple)):
        return [detach(state) for state in states]
    return states.detach()


hidden = model.begin_state(batch_size=BATCH, func=mx.nd.zeros)
for data, target in batches(text):
    hidden = detach(hidden)
    with autograd.record():
        output, hidden, states, dropped_states = model(data, hidden)
        loss = cross_entropy(output.reshape(-3, -1), target.reshape(-1)).mean()
        loss = loss + activation(*dropped_states) + temporal_activation(*states)
    loss.backward()
    gluon.utils.clip_global_norm([p.grad() for p in parameters], CLIP)
    trainer.step(1)
    losses.append(float(loss.asscalar()))

report({"perplexity": math.exp(np.mean(losses[-5:]))})
