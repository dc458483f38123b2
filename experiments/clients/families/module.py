"""The networks of MXNet's example/image-classification, as symbols for `mx.mod.Module`."""

from experiments.clients.cases import Case, Edit, Family

EDITS = [
    Edit("import mxnet as mx", "import gluon_amp as amp\nimport mxnet as mx"),
    Edit(
        "model = mx.mod.Module(context=devs, symbol=network)",
        'model = amp.symbolic.Module(context=devs, symbol=network, policy="{policy}")',
    ),
]

FAMILY = Family(
    name="module",
    requirements="module.txt",
    python="3.11",
    cases=[
        Case("mlp", "train_mnist.py", EDITS, steps=100),
        Case("lenet", "train_mnist.py", EDITS, steps=60),
        Case("resnet", "train_mnist.py", EDITS, steps=40),
    ],
)
