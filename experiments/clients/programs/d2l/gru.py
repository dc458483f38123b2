"""D2L's GRU as a language model of words, after the chapter on modern recurrent networks."""

import numpy
from d2l import mxnet as d2l

from experiments.clients.shared import STEPS, batches, losses, report, seed_all

from mxnet import autograd, gluon, init, npx
from mxnet.gluon import rnn

npx.set_np()
seed_all()

BATCH, TIME, WORDS = 16, 10, 20


def make_corpus(count):
    """A text in which each word has two successors, the first three times as frequent."""
    successors = numpy.random.randint(0, WORDS, (WORDS, 2))
    text = [0]
    for second in numpy.random.uniform(size=count) < 0.25:
        text.append(int(successors[text[-1], int(second)]))
    return text


device = d2l.try_gpu()
net = d2l.RNNModel(rnn.GRU(64), WORDS)
net.initialize(ctx=device, force_reinit=True, init=init.Normal(0.1))
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 2})

state = None
corpus = make_corpus(BATCH * TIME * (STEPS + 2))
for X, Y in batches(d2l.seq_data_iter_sequential(corpus, BATCH, TIME)):
    if state is None:
        state = net.begin_state(batch_size=X.shape[0], ctx=device)
    else:
        for s in state:
            s.detach()
    y = Y.T.reshape(-1)
    X, y = X.as_in_ctx(device), y.as_in_ctx(device)
    with autograd.record():
        y_hat, state = net(X, state)
        loss = loss_fn(y_hat, y).mean()
    loss.backward()
    d2l.grad_clipping(net, 1)
    trainer.step(batch_size=1)
    losses.append(float(loss))

report()
