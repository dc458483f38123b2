"""GluonTS: its estimators train inside `gluonts.mx.Trainer`, where the edits are."""

from experiments.clients.cases import Case, Edit, Family

TRAINER = {
    "gluonts/mx/trainer/_base.py": [
        Edit("import mxnet as mx", "import gluon_amp as amp\nimport mxnet as mx"),
        Edit(
            "trainer = mx.gluon.Trainer(",
            'net = amp.cast(net, "{policy}")\ntrainer = amp.Trainer(',
        ),
        Edit("loss.backward()", "trainer.backward(loss)"),
    ]
}
FAMILY = Family(
    name="gluonts",
    requirements="gluonts.txt",
    python="3.11",
    cases=[
        Case("simple_feedforward", "simple_feedforward.py", [], steps=150, files=TRAINER),
        Case("deepar", "deepar.py", [], steps=80, files=TRAINER),
        Case("transformer", "transformer.py", [], steps=60, files=TRAINER),
    ],
)
