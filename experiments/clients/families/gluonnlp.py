"""GluonNLP: BERT as a classifier and pretrained, and a language model."""

from typing import List

from experiments.clients.cases import Case, Edit, Family


def edits(trainer: str, clip: str, clipped: str) -> List[Edit]:
    """Return the edits of a script that creates a trainer and clips gradients on these lines."""
    cast = trainer.replace("gluon.Trainer(model", 'amp.Trainer(amp.cast(model, "{policy}")')
    return [
        Edit("import gluonnlp as nlp", "import gluon_amp as amp\nimport gluonnlp as nlp"),
        Edit(trainer, cast.replace("mx.", "")),
        Edit("loss.backward()", "trainer.backward(loss)"),
        Edit(clip, clipped),
    ]


FAMILY = Family(
    name="gluonnlp",
    requirements="gluonnlp.txt",
    python="3.11",
    cases=[
        Case(
            "bert_classification",
            "bert_classification.py",
            edits(
                'trainer = mx.gluon.Trainer(model.collect_params(), "bertadam", optimizer_params)',
                "nlp.utils.clip_grad_global_norm(params, 1)",
                "trainer.clip_global_norm(1)",
            ),
            steps=60,
        ),
        Case(
            "bert_pretraining",
            "bert_pretraining.py",
            edits(
                'trainer = mx.gluon.Trainer(model.collect_params(), "lamb", optimizer_params)',
                "nlp.utils.clip_grad_global_norm(params, 1)",
                "trainer.clip_global_norm(1)",
            ),
            steps=70,
        ),
        Case(
            "awd_lstm",
            "awd_lstm.py",
            edits(
                'trainer = gluon.Trainer(model.collect_params(), "sgd", optimizer_params)',
                "gluon.utils.clip_global_norm([p.grad() for p in parameters], CLIP)",
                "trainer.clip_global_norm(CLIP)",
            ),
            steps=80,
        ),
    ],
)
