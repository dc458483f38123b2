"""D2L's translators, after the chapters on recurrent networks and on attention mechanisms.

The case is `seq2seq`, with GRUs, or `transformer`.
"""

import math
import random

import numpy
from d2l import mxnet as d2l

from experiments.clients.shared import CASE, STEPS, batches, losses, report, seed_all

from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn, rnn

npx.set_np()
seed_all()

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


class DecoderBlock(nn.Block):
    """Attention to the words so far, attention to the source, and a feed-forward network."""

    def __init__(self, num_hiddens, ffn_num_hiddens, num_heads, dropout, i, **kwargs):
        super().__init__(**kwargs)
        self.i = i
        self.attention1 = d2l.MultiHeadAttention(num_hiddens, num_heads, dropout)
        self.addnorm1 = d2l.AddNorm(dropout)
        self.attention2 = d2l.MultiHeadAttention(num_hiddens, num_heads, dropout)
        self.addnorm2 = d2l.AddNorm(dropout)
        self.ffn = d2l.PositionWiseFFN(ffn_num_hiddens, num_hiddens)
        self.addnorm3 = d2l.AddNorm(dropout)

    def forward(self, x, state):
        enc_outputs, enc_valid_lens, past = state
        # in prediction, one word at a time comes; the words before it are in the state
        past[self.i] = x if past[self.i] is None else np.concatenate((past[self.i], x), axis=1)
        dec_valid_lens = None
        if autograd.is_training():
            dec_valid_lens = np.tile(np.arange(1, x.shape[1] + 1, ctx=x.ctx), (x.shape[0], 1))
        y = self.addnorm1(x, self.attention1(x, past[self.i], past[self.i], dec_valid_lens))
        z = self.attention2(y, enc_outputs, enc_outputs, enc_valid_lens)
        z = self.addnorm2(y, z)
        return self.addnorm3(z, self.ffn(z)), state


class TransformerDecoder(d2l.AttentionDecoder):
    """Blocks as above between an embedding and a dense layer."""

    def __init__(self, vocab_size, num_hiddens, ffn_num_hiddens, num_heads, num_layers, dropout):
        super().__init__()
        self.num_hiddens, self.num_layers = num_hiddens, num_layers
        self.embedding = nn.Embedding(vocab_size, num_hiddens)
        self.pos_encoding = d2l.PositionalEncoding(num_hiddens, dropout)
        self.blks = nn.Sequential()
        for i in range(num_layers):
            self.blks.add(DecoderBlock(num_hiddens, ffn_num_hiddens, num_heads, dropout, i))
        self.dense = nn.Dense(vocab_size, flatten=False)

    def init_state(self, enc_outputs, enc_valid_lens, *args):
        return [enc_outputs, enc_valid_lens, [None] * self.num_layers]

    def forward(self, x, state):
        x = self.pos_encoding(self.embedding(x) * math.sqrt(self.num_hiddens))
        for blk in self.blks:
            x, state = blk(x, state)
        return self.dense(x), state


vocab = d2l.Vocab([WORDS], reserved_tokens=SPECIAL)
sources, targets = make_sentences(BATCH * STEPS)
arrays = (
    *d2l.build_array_nmt(sources, vocab, TIME),
    *d2l.build_array_nmt(targets, vocab, TIME),
)
device = d2l.try_gpu()
if CASE == "seq2seq":
    encoder = d2l.Seq2SeqEncoder(len(vocab), 32, 64, 2, dropout=0.1)
    decoder = Seq2SeqDecoder(len(vocab), 32, 64, 2, dropout=0.1)
    learning_rate = 0.002
else:
    encoder = d2l.TransformerEncoder(len(vocab), 32, 64, 4, 2, 0.1)
    decoder = TransformerDecoder(len(vocab), 32, 64, 4, 2, 0.1)
    learning_rate = 0.005
net = d2l.EncoderDecoder(encoder, decoder)
net.initialize(init.Xavier(), force_reinit=True, ctx=device)
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": learning_rate})
loss_fn = d2l.MaskedSoftmaxCELoss()

for batch in batches(d2l.load_array(arrays, BATCH)):
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

scores = []
for source, target in zip(*make_sentences(20)):
    translation, _ = d2l.predict_seq2seq(net, " ".join(source), vocab, vocab, TIME, device)
    scores.append(d2l.bleu(translation, " ".join(target), k=1))
report({"BLEU of words": numpy.mean(scores)})
