"""Fine-tune a BERT classifier on sentences, as GluonNLP 0.10's `finetune_classifier.py` does.

The sentences are generated. The label says which of two moods has more words in the sentence.
"""

import random

import gluonnlp as nlp
import numpy as np

from experiments.clients.shared import STEPS, batches, losses, report, seed_all

import mxnet as mx

seed_all()

MAX_LENGTH, BATCH = 24, 16
MOODS = ["bad awful boring weak cold".split(), "good great funny strong warm".split()]
OTHERS = "the film was a story about man woman and house of summer in town".split()


def sentence():
    label = random.randrange(2)
    words = random.choices(MOODS[label], k=random.randint(2, 4))
    words += random.choices(MOODS[1 - label], k=random.randint(0, 1))
    words += random.choices(OTHERS, k=random.randint(2, 14))
    random.shuffle(words)
    return " ".join(words), label


vocabulary = nlp.vocab.BERTVocab(nlp.data.count_tokens(sum(MOODS, OTHERS)))
transform = nlp.data.BERTSentenceTransform(
    nlp.data.BERTTokenizer(vocabulary), MAX_LENGTH, pair=False
)
examples = []
for text, label in (sentence() for _ in range(STEPS * BATCH)):
    token_ids, valid_length, segment_ids = transform([text])
    examples.append((token_ids, segment_ids, np.float32(valid_length), np.int32(label)))
loader = mx.gluon.data.DataLoader(mx.gluon.data.SimpleDataset(examples), BATCH)

encoder = nlp.model.BERTEncoder(
    num_layers=2, units=64, hidden_size=128, max_length=MAX_LENGTH, num_heads=4, dropout=0.1
)
bert = nlp.model.BERTModel(
    encoder, len(vocabulary), token_type_vocab_size=2, units=64, embed_size=64,
    use_decoder=False, use_classifier=False,
)  # fmt: skip
model = nlp.model.BERTClassifier(bert, num_classes=2, dropout=0.1)
model.initialize(mx.init.Normal(0.1))
model.hybridize(static_alloc=True)
loss_function = mx.gluon.loss.SoftmaxCELoss()

optimizer_params = {"learning_rate": 2e-4, "epsilon": 1e-6, "wd": 0.01}
trainer = mx.gluon.Trainer(model.collect_params(), "bertadam", optimizer_params)
for parameter in model.collect_params(".*beta|.*gamma|.*bias").values():
    parameter.wd_mult = 0.0
params = [param for param in model.collect_params().values() if param.grad_req != "null"]

right = 0
for step, (token_ids, segment_ids, valid_length, label) in enumerate(batches(loader)):
    trainer.set_learning_rate(2e-4 * min(1, (step + 1) / 10))
    with mx.autograd.record():
        out = model(token_ids, segment_ids, valid_length)
        loss = loss_function(out, label).mean()
    loss.backward()
    trainer.allreduce_grads()
    nlp.utils.clip_grad_global_norm(params, 1)
    trainer.update(1)
    losses.append(float(loss.asscalar()))
    right += int((out.argmax(axis=1) == label.astype("float32")).sum().asscalar())

report({"accuracy": right / len(examples)})
