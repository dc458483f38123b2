"""Pretrain BERT on next sentences and masked words, as GluonNLP 0.10's `run_pretraining.py` does.

The sentences are generated. A sentence counts through the words of its topic; the next
sentence has the same topic.
"""

import random

import gluonnlp as nlp
import numpy as np

from experiments.clients.shared import STEPS, batches, losses, report, seed_all

import mxnet as mx

seed_all()

TOPICS, WORDS, HALF, MASKS, BATCH = 3, 4, 6, 3, 16
LENGTH = 2 * HALF + 3
vocabulary = nlp.vocab.BERTVocab(
    nlp.data.count_tokens(f"{topic}w{word}" for topic in range(TOPICS) for word in range(WORDS))
)


def sentence(topic):
    start = random.randrange(WORDS)
    length = random.randint(HALF - 2, HALF)
    return [f"{topic}w{(start + i) % WORDS}" for i in range(length)]


def example():
    topic, is_next = random.randrange(TOPICS), random.randrange(2)
    first = ["[CLS]", *sentence(topic), "[SEP]"]
    second = sentence(topic if is_next else (topic + random.randint(1, TOPICS - 1)) % TOPICS)
    tokens = [*first, *second, "[SEP]"]
    positions = random.sample([i for i, t in enumerate(tokens) if t[0] != "["], MASKS)
    masked = vocabulary[[tokens[position] for position in positions]]
    for position in positions:
        tokens[position] = "[MASK]"
    segments = [0] * len(first) + [1] * (len(tokens) - len(first))
    padding = LENGTH - len(tokens)
    return (
        np.array(vocabulary[tokens] + [vocabulary["[PAD]"]] * padding, np.float32),
        np.array(segments + [0] * padding, np.float32),
        np.float32(len(tokens)),
        np.array(positions, np.float32),
        np.array(masked, np.float32),
        np.float32(is_next),
    )


dataset = mx.gluon.data.SimpleDataset([example() for _ in range(STEPS * BATCH)])
loader = mx.gluon.data.DataLoader(dataset, BATCH)

encoder = nlp.model.BERTEncoder(
    num_layers=2, units=64, hidden_size=128, max_length=LENGTH, num_heads=4, dropout=0.1
)
model = nlp.model.BERTModel(
    encoder, len(vocabulary), token_type_vocab_size=2, units=64, embed_size=64
)
model.initialize(mx.init.Normal(0.1))
model.hybridize(static_alloc=True)
mlm_loss = mx.gluon.loss.SoftmaxCELoss()
nsp_loss = mx.gluon.loss.SoftmaxCELoss()
optimizer_params = {"learning_rate": 0.01, "wd": 0.01}
trainer = mx.gluon.Trainer(model.collect_params(), "lamb", optimizer_params)
params = [param for param in model.collect_params().values() if param.grad_req != "null"]

right = []
for step, batch in enumerate(batches(loader)):
    token_ids, segment_ids, valid_length, positions, masked, is_next = batch
    trainer.set_learning_rate(0.01 * min(1, (step + 1) / 10))
    with mx.autograd.record():
        _, _, classified, decoded = model(token_ids, segment_ids, valid_length, positions)
        loss = mlm_loss(decoded.reshape(-3, 0), masked.reshape(-1)).mean()
        loss = loss + nsp_loss(classified, is_next).mean()
    loss.backward()
    trainer.allreduce_grads()
    nlp.utils.clip_grad_global_norm(params, 1)
    trainer.update(1)
    losses.append(float(loss.asscalar()))
    right.append(float((decoded.argmax(axis=-1) == masked).mean().asscalar()))

report({"masked_words_right": np.mean(right[-5:])})
