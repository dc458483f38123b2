"""All families with their cases, and the edits that cast them."""

from typing import List

from experiments.clients.cases import Case, Edit, Family


def import_before(line: str) -> Edit:
    """Return the edit that imports gluon_amp before this import."""
    return Edit(line, f"import gluon_amp as amp\n{line}")


MXNET = import_before("import mxnet as mx")
BACKWARD = Edit("loss.backward()", "trainer.backward(loss)")

# ------------------------------------------------- Dive into Deep Learning, with `npx.set_np()`


def d2l(optimizer: str, learning_rate: str, *others: Edit) -> List[Edit]:
    """Return the edits of a program whose trainer has these arguments."""
    arguments = f'"{optimizer}", {{"learning_rate": {learning_rate}}})'
    trainer = Edit(
        f"trainer = gluon.Trainer(net.collect_params(), {arguments}",
        f'trainer = amp.Trainer(amp.cast(net, "{{policy}}").collect_params(), {arguments}',
    )
    return [import_before("npx.set_np()"), trainer, BACKWARD, *others]


CLIP = Edit("d2l.grad_clipping(net, 1)", "trainer.clip_global_norm(1, 1)")
D2L = Family(
    name="d2l",
    python="3.8",
    cases=[
        Case("lenet", "images.py", d2l("sgd", "learning_rate"), steps=50),
        Case("resnet", "images.py", d2l("sgd", "learning_rate")),
        Case("gru", "gru.py", d2l("sgd", "2", CLIP), steps=60),
        Case("seq2seq", "translation.py", d2l("adam", "learning_rate", CLIP), steps=80),
        Case("transformer", "translation.py", d2l("adam", "learning_rate", CLIP), steps=50),
        Case("bert", "bert.py", d2l("adam", "0.005"), steps=50),
    ],
)

# ------------------------------------------------------ the Estimator of `mxnet.gluon.contrib`

TRAINER = 'trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.003})'
CAST_FIRST = f'amp.cast(net, "{{policy}}")\n{TRAINER.replace("gluon.Trainer", "amp.Trainer")}'
PROCESSOR = "trainer=trainer, batch_processor=amp.BatchProcessor(),"
ESTIMATOR = Family(
    name="estimator",
    cases=[
        Case(
            "fit",
            "fit.py",
            [MXNET, Edit(TRAINER, CAST_FIRST), Edit("trainer=trainer,", PROCESSOR)],
            steps=60,
        )
    ],
)

# --------------------- GluonCV's training scripts: classification, detection and segmentation


def gluoncv(
    arguments: str, *others: Edit, name: str = "trainer", net: str = "net", options: str = ""
) -> List[Edit]:
    """Return the edits of the import and of the line that creates the trainer, and others."""
    trainer = f"{name} = gluon.Trainer({arguments})"
    new = trainer.replace("gluon.Trainer", "amp.Trainer").replace("params)", f"params{options})")
    return [MXNET, Edit(trainer, f'amp.cast({net}, "{{policy}}")\n{new}'), *others]


NAG = 'net.collect_params(), "nag", optimizer_params'
SGD = 'net.collect_params(), "sgd", optimizer_params'
EACH = Edit("part.backward()", "trainer.backward(part)")
DETECTION = Edit("autograd.backward(sum_losses)", "trainer.backward(sum_losses)")
RCNN = Edit("total_loss.backward()", "self._optimizer.backward(total_loss)")
# GluonCV's loss ignores its head gradient, so that no loss scale reaches the gradients
SEGMENTATION = gluoncv(
    'params, "sgd", optimizer_params',
    Edit("autograd.backward(losses)", "self.optimizer.backward(losses)"),
    name="self.optimizer",
    net="model",
    options=", loss_scale=None",
)
GLUONCV = Family(
    name="gluoncv",
    cases=[
        Case("cifar_resnet20", "cifar.py", gluoncv(NAG, EACH)),
        Case("mobilenet", "mobilenet.py", gluoncv(NAG, EACH)),
        Case("ssd", "detection.py", gluoncv(SGD, DETECTION)),
        Case("yolo3", "detection.py", gluoncv(SGD, DETECTION)),
        Case(
            "faster_rcnn",
            "faster_rcnn.py",
            gluoncv('params, "sgd", optimizer_params, kvstore="device"'),
            files={"gluoncv/model_zoo/rcnn/faster_rcnn/data_parallel.py": [RCNN]},
        ),
        Case("deeplab", "segmentation.py", SEGMENTATION, steps=20),
    ],
)

# ------------------------ GluonNLP: BERT as a classifier and pretrained, and a language model


BERT_CLIP = "nlp.utils.clip_grad_global_norm(params, 1)"
LM_CLIP = "gluon.utils.clip_global_norm([p.grad() for p in parameters], CLIP)"


def gluonnlp(
    optimizer: str, clip: str = BERT_CLIP, norm: str = "1", module: str = "mx.gluon"
) -> List[Edit]:
    """Return the edits of a script with this optimizer and this line that clips."""
    arguments = f'model.collect_params(), "{optimizer}", optimizer_params)'
    cast = arguments.replace("model", 'amp.cast(model, "{policy}")')
    return [
        import_before("import gluonnlp as nlp"),
        Edit(f"trainer = {module}.Trainer({arguments}", f"trainer = amp.Trainer({cast}"),
        BACKWARD,
        Edit(clip, f"trainer.clip_global_norm({norm}, 1)"),
    ]


GLUONNLP = Family(
    name="gluonnlp",
    cases=[
        Case("bert_classification", "bert_classification.py", gluonnlp("bertadam"), steps=60),
        Case("bert_pretraining", "bert_pretraining.py", gluonnlp("lamb"), steps=70),
        Case("awd_lstm", "awd_lstm.py", gluonnlp("sgd", LM_CLIP, "CLIP", "gluon"), steps=80),
    ],
)

# --------- GluonTS: its estimators train inside `gluonts.mx.Trainer`, where the edits are made

INSIDE = {
    "gluonts/mx/trainer/_base.py": [
        MXNET,
        Edit(
            "trainer = mx.gluon.Trainer(",
            'net = amp.cast(net, "{policy}")\ntrainer = amp.Trainer(',
        ),
        BACKWARD,
    ]
}
GLUONTS = Family(
    name="gluonts",
    cases=[
        Case("simple_feedforward", "train.py", [], steps=150, files=INSIDE),
        Case("deepar", "train.py", [], steps=80, files=INSIDE),
        Case("transformer", "train.py", [], steps=60, files=INSIDE),
    ],
)

# --------- MXNet's example/image-classification with `mx.mod.Module`, and example/rnn/bucketing

MODULE_EDITS = [
    MXNET,
    Edit(
        "model = mx.mod.Module(context=devs, symbol=network)",
        'model = amp.symbolic.Module(context=devs, symbol=network, policy="{policy}")',
    ),
]
BUCKETING_EDITS = [
    MXNET,
    Edit(
        "model = mx.mod.BucketingModule(sym_gen, **options)",
        'model = amp.symbolic.BucketingModule(sym_gen, policy="{policy}", **options)',
    ),
]
MODULE = Family(
    name="module",
    cases=[
        Case("mlp", "train_mnist.py", MODULE_EDITS, steps=100),
        Case("lenet", "train_mnist.py", MODULE_EDITS, steps=60),
        Case("resnet", "train_mnist.py", MODULE_EDITS, steps=40),
        Case("lstm_bucketing", "lstm_bucketing.py", BUCKETING_EDITS, steps=60),
    ],
)

# ----------------------------- Sockeye 2: training and translating with its command line

SOCKEYE_TRAIN = {
    "sockeye/train.py": [
        Edit("from mxnet.contrib import amp", "import gluon_amp as amp"),
        Edit(
            "params = training_model.collect_params()",
            'params = amp.cast(training_model, "{policy}").collect_params()',
        ),
        Edit("gluon_trainer = gluon.Trainer(params,", "gluon_trainer = amp.Trainer(params,"),
    ],
    "sockeye/training.py": [Edit("sum_losses.backward()", "self.trainer.backward(sum_losses)")],
}
SOCKEYE_TRANSLATE = {
    "sockeye/model.py": [
        MXNET,
        Edit(
            "params = model.collect_params()",
            'params = amp.cast(model, "{policy}").collect_params()',
        ),
    ]
}
SOCKEYE = Family(
    name="sockeye",
    complete=True,
    cases=[
        Case("train", "command_line.py", [], steps=40, files=SOCKEYE_TRAIN),
        Case("translate", "command_line.py", [], steps=40, files=SOCKEYE_TRANSLATE),
    ],
)

FAMILIES = [D2L, ESTIMATOR, GLUONCV, GLUONNLP, GLUONTS, MODULE, SOCKEYE]
