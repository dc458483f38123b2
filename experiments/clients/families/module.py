"""MXNet's example/image-classification with `mx.mod.Module`, and its example/rnn/bucketing."""

from experiments.clients.cases import Case, Edit, Family

IMPORT = Edit("import mxnet as mx", "import gluon_amp as amp\nimport mxnet as mx")
EDITS = [
    IMPORT,
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
        Case(
            "lstm_bucketing",
            "lstm_bucketing.py",
            [
                IMPORT,
                Edit(
                    "model = mx.mod.BucketingModule(sym_gen, **options)",
                    'model = amp.symbolic.BucketingModule(sym_gen, policy="{policy}", **options)',
                ),
            ],
            steps=60,
        ),
    ],
)
