"""GluonCV's training scripts: classification, detection and segmentation."""

from typing import List

from experiments.clients.cases import Case, Edit, Family


def cast(trainer: str, net: str = "net", options: str = "") -> List[Edit]:
    """Return the edits of the import and of the line that creates the trainer."""
    new = trainer.replace("gluon.Trainer", "amp.Trainer").replace("params)", f"params{options})")
    return [
        Edit("import mxnet as mx", "import gluon_amp as amp\nimport mxnet as mx"),
        Edit(trainer, f'amp.cast({net}, "{{policy}}")\n{new}'),
    ]


EACH_LOSS = Edit("part.backward()", "trainer.backward(part)")

FAMILY = Family(
    name="gluoncv",
    requirements="gluoncv.txt",
    python="3.11",
    cases=[
        Case(
            "cifar_resnet20",
            "cifar.py",
            [
                *cast('trainer = gluon.Trainer(net.collect_params(), "nag", optimizer_params)'),
                EACH_LOSS,
            ],
        ),
        Case(
            "mobilenet",
            "mobilenet.py",
            [
                *cast('trainer = gluon.Trainer(net.collect_params(), "nag", optimizer_params)'),
                EACH_LOSS,
            ],
        ),
        Case(
            "ssd",
            "ssd.py",
            [
                *cast('trainer = gluon.Trainer(net.collect_params(), "sgd", optimizer_params)'),
                Edit("autograd.backward(sum_loss)", "trainer.backward(sum_loss)"),
            ],
        ),
        Case(
            "yolo3",
            "yolo3.py",
            [
                *cast('trainer = gluon.Trainer(net.collect_params(), "sgd", optimizer_params)'),
                Edit("autograd.backward(sum_losses)", "trainer.backward(sum_losses)"),
            ],
        ),
        Case(
            "faster_rcnn",
            "faster_rcnn.py",
            cast('trainer = gluon.Trainer(params, "sgd", optimizer_params, kvstore="device")'),
            files={
                "gluoncv/model_zoo/rcnn/faster_rcnn/data_parallel.py": [
                    Edit("total_loss.backward()", "self._optimizer.backward(total_loss)")
                ],
            },
        ),
        Case(
            "deeplab",
            "segmentation.py",
            # GluonCV's loss ignores its head gradient, so that no loss scale reaches the gradients
            [
                *cast(
                    'self.optimizer = gluon.Trainer(params, "sgd", optimizer_params)',
                    net="model",
                    options=", loss_scale=None",
                ),
                Edit("autograd.backward(losses)", "self.optimizer.backward(losses)"),
            ],
            steps=20,
        ),
    ],
)
