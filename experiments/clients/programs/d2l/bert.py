"""D2L's BERT learns masked words and the next sentence, after the chapter on pretraining."""

import random

from d2l import mxnet as d2l

from experiments.clients.shared import STEPS, batches, losses, report, seed_all

from mxnet import autograd, gluon, init, np, npx

npx.set_np()
seed_all()

BATCH, LENGTH, TOPICS, WORDS, MASKED = 16, 12, 5, 4, 2
PAD, CLS, SEP, MASK = range(4)


def make_sentence(topic):
    """Four of a topic's words."""
    return [4 + WORDS * topic + random.randrange(WORDS) for _ in range(4)]


def make_example():
    """Two sentences, which belong together if they have one topic."""
    follows, topic = random.random() < 0.5, random.randrange(TOPICS)
    other = topic if follows else (topic + random.randrange(1, TOPICS)) % TOPICS
    words = make_sentence(topic), make_sentence(other)
    tokens, segments = d2l.get_tokens_and_segments(*words)
    tokens = [{"<cls>": CLS, "<sep>": SEP}.get(token, token) for token in tokens]
    valid = len(tokens)
    positions = random.sample([i for i in range(valid) if tokens[i] >= 4], MASKED)
    labels = [tokens[position] for position in positions]
    for position in positions:
        tokens[position] = MASK
    padding = [0] * (LENGTH - valid)
    return tokens + padding, segments + padding, valid, positions, [1] * MASKED, labels, follows


def make_data(count):
    """Tokens, segments, valid lengths, masked positions, their weights and words, and labels."""
    columns = zip(*(make_example() for _ in range(count)))
    dtypes = ("int32", "int32", "float32", "int32", "float32", "int32", "int32")
    return tuple(np.array(column, dtype=dtype) for column, dtype in zip(columns, dtypes))


vocab_size = 4 + TOPICS * WORDS
net = d2l.BERTModel(
    vocab_size, num_hiddens=32, ffn_num_hiddens=64, num_heads=2, num_layers=2, dropout=0.1
)
device = d2l.try_gpu()
net.initialize(init.Xavier(), ctx=device)
loss_fn = gluon.loss.SoftmaxCELoss()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.005})

for batch in batches(d2l.load_array(make_data(BATCH * STEPS), BATCH)):
    tokens, segments, valid_lens, positions, weights, mlm_y, nsp_y = [
        x.as_in_ctx(device) for x in batch
    ]
    with autograd.record():
        _, mlm_hat, nsp_hat = net(tokens, segments, valid_lens, positions)
        mlm_loss = loss_fn(
            mlm_hat.reshape((-1, vocab_size)), mlm_y.reshape(-1), weights.reshape((-1, 1))
        )
        mlm_loss = mlm_loss.sum() / (weights.sum() + 1e-8)
        nsp_loss = loss_fn(nsp_hat, nsp_y).mean()
        loss = mlm_loss + nsp_loss
    loss.backward()
    trainer.step(1)
    losses.append(float(loss))

report()
