"""GluonCV's training scripts: classification, detection and segmentation."""

from experiments.clients.cases import Case, Edit, Family

IMPORT = Edit("import mxnet as mx", "import gluon_amp as amp\nimport mxnet as mx")
FAMILY = Family(
    name="gluoncv",
    requirements="gluoncv.txt",
    python="3.11",
    cases=[
        Case(
            name="cifar_resnet20",
            program="cifar.py",
            edits=[
                IMPORT,
                Edit(
                    'trainer = gluon.Trainer(net.collect_params(), "nag", optimizer_params)',
                    """
                    amp.cast(net, '{policy}')
                    trainer = amp.Trainer(net.collect_params(), "nag", optimizer_params)
                    """,
                ),
                Edit("autograd.backward(loss)", "trainer.backward(loss)"),
            ],
        ),
    ],
)
