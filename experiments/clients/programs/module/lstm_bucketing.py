"""A language model with sentences of several lengths, after MXNet's example/rnn/bucketing."""

import random

import numpy as np

from experiments.clients.shared import STEPS, losses, report, seed_all, step_ended

import mxnet as mx

seed_all()

BATCH, WORDS, BUCKETS = 16, 30, [8, 12, 16]


def make_sentences(count):
    """Return sentences of a Markov chain: most words have one likely successor."""
    successors = np.random.permutation(np.arange(1, WORDS))
    sentences = []
    for _ in range(count):
        words = [np.random.randint(1, WORDS)]
        for _ in range(random.choice(BUCKETS) - 1):
            likely = np.random.uniform() < 0.8
            words.append(successors[words[-1] - 1] if likely else np.random.randint(1, WORDS))
        sentences.append([int(word) for word in words])
    return sentences


stack = mx.rnn.SequentialRNNCell()
for layer in range(2):
    stack.add(mx.rnn.LSTMCell(num_hidden=64, prefix=f"lstm_l{layer}_"))


def sym_gen(seq_len):
    data = mx.sym.Variable("data")
    label = mx.sym.Variable("softmax_label")
    embed = mx.sym.Embedding(data=data, input_dim=WORDS, output_dim=32, name="embed")
    stack.reset()
    outputs, _ = stack.unroll(seq_len, inputs=embed, merge_outputs=True)
    pred = mx.sym.Reshape(outputs, shape=(-1, 64))
    pred = mx.sym.FullyConnected(data=pred, num_hidden=WORDS, name="pred")
    label = mx.sym.Reshape(label, shape=(-1,))
    return (
        mx.sym.SoftmaxOutput(data=pred, label=label, name="softmax"),
        ("data",),
        ("softmax_label",),
    )


def log(parameters):
    losses.append(np.log(dict(parameters.eval_metric.get_name_value())["perplexity"]))
    parameters.eval_metric.reset()
    step_ended()


train = mx.rnn.BucketSentenceIter(
    make_sentences(BATCH * (STEPS + len(BUCKETS))), BATCH, buckets=BUCKETS, invalid_label=0
)
options = {"default_bucket_key": train.default_bucket_key, "context": mx.cpu()}
model = mx.mod.BucketingModule(sym_gen, **options)
model.fit(
    train,
    num_epoch=1,
    eval_metric=mx.metric.Perplexity(0),
    kvstore="device",
    optimizer="adam",
    optimizer_params={"learning_rate": 0.01, "wd": 0.00001},
    initializer=mx.init.Xavier(factor_type="in", magnitude=2.34),
    batch_end_callback=[log],
)

del losses[STEPS:]
report()
