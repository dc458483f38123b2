"""The Estimator of `mxnet.gluon.contrib`."""

from experiments.clients.cases import Case, Edit, Family

TRAINER = 'trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.003})'

FAMILY = Family(
    name="estimator",
    requirements="module.txt",  # no more than MXNet
    python="3.11",
    cases=[
        Case(
            "fit",
            "fit.py",
            [
                Edit("import mxnet as mx", "import gluon_amp as amp\nimport mxnet as mx"),
                Edit(
                    TRAINER,
                    'amp.cast(net, "{policy}")\n' + TRAINER.replace("gluon.Trainer", "amp.Trainer"),
                ),
                Edit("trainer=trainer,", "trainer=trainer, batch_processor=amp.BatchProcessor(),"),
            ],
            steps=60,
        ),
    ],
)
