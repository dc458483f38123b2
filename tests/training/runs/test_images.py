"""Which classes a network confuses."""

import numpy as np

from gluon_amp.training.runs.images import confusion_matrix, worst

from mxnet import nd


def test_worst_confusions_of_a_literal_matrix():
    matrix = np.array([[5, 2, 0], [0, 9, 1], [3, 0, 0]])
    assert [str(confusion) for confusion in worst(matrix, ["a", "b", "c"], 2)] == [
        "3 of 3 images of c taken for a",
        "2 of 7 images of a taken for b",
    ]
    assert worst(np.eye(3, dtype=int), (), 5) == []
    assert str(worst(matrix, (), 1)[0]) == "3 of 3 images of class 2 taken for class 0"


def test_rows_are_true_classes_and_columns_predicted_ones():
    class Engine:
        def predict(self, batch):
            yield nd.array([0, 1, 1]), nd.array([[0, 1], [0, 1], [1, 0]])

    assert confusion_matrix(Engine(), [None, None], 2).tolist() == [[0, 2], [2, 2]]
