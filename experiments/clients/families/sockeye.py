"""Sockeye 2: training and translating with its command line."""

from experiments.clients.cases import Case, Edit, Family

IMPORT = Edit("from mxnet.contrib import amp", "import gluon_amp as amp")

FAMILY = Family(
    name="sockeye",
    requirements="sockeye.txt",
    complete=True,
    python="3.11",
    cases=[
        Case(
            "train",
            "train.py",
            [],
            steps=40,
            files={
                "sockeye/train.py": [
                    IMPORT,
                    Edit(
                        "params = training_model.collect_params()",
                        'params = amp.cast(training_model, "{policy}").collect_params()',
                    ),
                    Edit(
                        "gluon_trainer = gluon.Trainer(params,",
                        "gluon_trainer = amp.Trainer(params,",
                    ),
                ],
                "sockeye/training.py": [
                    Edit("sum_losses.backward()", "self.trainer.backward(sum_losses)")
                ],
            },
        ),
        Case(
            "translate",
            "translate.py",
            [],
            steps=40,
            files={
                "sockeye/model.py": [
                    Edit("import mxnet as mx", "import gluon_amp as amp\nimport mxnet as mx"),
                    Edit(
                        "params = model.collect_params()",
                        'params = amp.cast(model, "{policy}").collect_params()',
                    ),
                ],
            },
        ),
    ],
)
