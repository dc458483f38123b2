"""Dive into Deep Learning: the networks of its MXNet edition, which use `npx.set_np()`."""

from typing import List

from experiments.clients.cases import Case, Edit, Family

CLIP = Edit("d2l.grad_clipping(net, 1)", "trainer.clip_global_norm(1)")


def edits(optimizer: str, learning_rate: str, *others: Edit) -> List[Edit]:
    """Return the edits of a program whose trainer has these arguments."""
    arguments = f'"{optimizer}", {{"learning_rate": {learning_rate}}})'
    return [
        Edit("import mxnet as mx", "import gluon_amp as amp\nimport mxnet as mx"),
        Edit(
            f"trainer = gluon.Trainer(net.collect_params(), {arguments}",
            f'trainer = amp.Trainer(amp.cast(net, "{{policy}}").collect_params(), {arguments}',
        ),
        Edit("loss.backward()", "trainer.backward(loss)"),
        *others,
    ]


FAMILY = Family(
    name="d2l",
    requirements="d2l.txt",
    python="3.8",
    cases=[
        Case("lenet", "lenet.py", edits("sgd", "1"), steps=50),
        Case("resnet", "resnet.py", edits("sgd", "0.05")),
        Case("gru", "gru.py", edits("sgd", "2", CLIP), steps=60),
        Case("seq2seq", "seq2seq.py", edits("adam", "0.002", CLIP), steps=80),
        Case("transformer", "transformer.py", edits("adam", "0.005", CLIP), steps=50),
        Case("bert", "bert.py", edits("adam", "0.005"), steps=50),
    ],
)
