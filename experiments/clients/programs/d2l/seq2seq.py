"""D2L's sequence-to-sequence GRUs, after the chapter on modern recurrent networks."""

import json
import os
import random
import time

import numpy
from d2l import mxnet as d2l

import mxnet as mx
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn, rnn

npx.set_np()
SEED, STEPS = int(os.environ["SEED"]), int(os.environ["STEPS"])
random.seed(SEED)
numpy.random.seed(SEED)
mx.random.seed(SEED)

BATCH, TIME, SPECIAL = 32, 7, ["<pad>", "<bos>", "<eos>"]
WORDS = [f"w{number}" for number in range(12)]


def make_sentences(count):
    """Sentences of two to five words, and translations that name each word's successor."""
    sources = [random.choices(WORDS, k=random.randint(2, 5)) for _ in range(count)]
    successor = dict(zip(WORDS, WORDS[1:] + WORDS[:1]))
    return sources, [[successor[word] for word in source] for source in sources]


class Seq2SeqDecoder(d2l.Decoder):
    """A GRU whose input at each time also has the encoder's last state."""

    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0, **kwargs):
        super().__init__(**kwargs)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = rnn.GRU(num_hiddens, num_layers, dropout=dropout)
        self.dense = nn.Dense(vocab_size, flatten=False)

    def init_state(self, enc_outputs, *args):
        return enc_outputs[1]

    def forward(self, x, state):
        x = self.embedding(x).swapaxes(0, 1)
        context = state[0][-1]
        context = np.broadcast_to(context, (x.shape[0], context.shape[0], context.shape[1]))
        output, state = self.rnn(d2l.concat((x, context), 2), state)
        return self.dense(output).swapaxes(0, 1), state


vocab = d2l.Vocab([WORDS], reserved_tokens=SPECIAL)
sources, targets = make_sentences(BATCH * STEPS)
arrays = (
    *d2l.build_array_nmt(sources, vocab, TIME),
    *d2l.build_array_nmt(targets, vocab, TIME),
)
device = d2l.try_gpu()
encoder = d2l.Seq2SeqEncoder(len(vocab), 32, 64, 2, dropout=0.1)
decoder = Seq2SeqDecoder(len(vocab), 32, 64, 2, dropout=0.1)
net = d2l.EncoderDecoder(encoder, decoder)
net.initialize(init.Xavier(), force_reinit=True, ctx=device)
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.002})
loss_fn = d2l.MaskedSoftmaxCELoss()

losses, seconds = [], []
for batch in d2l.load_array(arrays, BATCH):
    start = time.time()
    X, X_valid_len, Y, Y_valid_len = [x.as_in_ctx(device) for x in batch]
    bos = np.array([vocab["<bos>"]] * Y.shape[0], ctx=device).reshape(-1, 1)
    dec_input = d2l.concat([bos, Y[:, :-1]], 1)
    with autograd.record():
        Y_hat, _ = net(X, dec_input, X_valid_len)
        loss = loss_fn(Y_hat, Y, Y_valid_len)
    loss.backward()
    d2l.grad_clipping(net, 1)
    num_tokens = Y_valid_len.sum()
    trainer.step(num_tokens)
    losses.append(float(loss.sum() / num_tokens) * TIME)
    seconds.append(time.time() - start)

scores = []
for source, target in zip(*make_sentences(20)):
    translation, _ = d2l.predict_seq2seq(net, " ".join(source), vocab, vocab, TIME, device)
    scores.append(d2l.bleu(translation, " ".join(target), k=1))
result = {"losses": losses, "step_seconds": numpy.median(seconds[3:])}
print(json.dumps({**result, "extra": {"BLEU of words": numpy.mean(scores)}}))
