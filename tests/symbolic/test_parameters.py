"""Values of a Module's parameters: dtypes, shapes, masters."""

import numpy as np
import pytest

from gluon_amp.symbolic import Module
from tests.symbolic.networks import (
    conv_net,
    images,
    linear_module,
    on_device,
    same,
    step,
    train,
    values,
)

from mxnet import nd


def test_values_of_any_float_dtype_become_masters_and_weights():
    for dtype in ("float16", "float32", "float64"):
        third = nd.array([[1 / 3, 1 / 7]], dtype=dtype)
        module = linear_module([[1.0, 2.0]])
        module.set_params({"fc_weight": third}, {})
        expected = third.astype("float32").asnumpy()
        np.testing.assert_array_equal(on_device(module).asnumpy(), expected.astype("float16"))
        module.collect_params()  # so that the next get_params reads the masters
        np.testing.assert_array_equal(values(module)["fc_weight"], expected)


def test_a_fixed_weight_keeps_all_bits_of_its_values():
    module = linear_module([[1 / 3, 1 / 7]], fixed_param_names=["fc_weight"])
    module.collect_params()  # so that the next get_params reads the executors
    assert on_device(module).dtype == np.float16
    expected = np.array([[1 / 3, 1 / 7]], "float32")
    np.testing.assert_array_equal(values(module)["fc_weight"], expected)


def test_set_params_with_missing_ones_keeps_the_others():
    module = train(Module(conv_net(), loss_scale=2.0**6), *images(), epochs=1)
    step(module, *images())  # which no get_params has seen
    own = {name: array.asnumpy() for name, array in module.trainer.master_params().items()}
    new = nd.ones((4, 72)) / 3
    module.set_params({"fc_weight": new}, None, allow_missing=True)
    same(values(module), {**own, "fc_weight": new.asnumpy()})
    with pytest.raises(ValueError, match=r"no parameter 'fc_wight' \(did you mean 'fc_weight'"):
        module.set_params({"fc_wight": new}, None, allow_missing=True)
    module.set_params({"fc_wight": new}, None, allow_missing=True, allow_extra=True)


def test_weights_written_to_the_executors_or_to_collected_parameters_are_followed():
    module = linear_module([[1.0, 2.0]], loss_scale=2.0)
    step(module, [[0.0, 0.0]], [[0.0]])
    on_device(module)[:] = nd.array([[5.0, 6.0]])
    assert values(module)["fc_weight"].tolist() == [[5, 6]]
    on_device(module)[:] = nd.array([[7.0, 6.0]])
    step(module, [[0.0, 0.0]], [[0.0]])
    assert values(module)["fc_weight"].tolist() == [[7, 6]]
    parameter = module.collect_params()["fc_weight"]
    assert parameter.data() is on_device(module)
    parameter.data()[:] = nd.array([[3.0, 4.0]])
    assert values(module)["fc_weight"].tolist() == [[3, 4]]


def test_values_of_another_dtype_or_shape_are_refused():
    module = linear_module([[1.0, 2.0]])
    with pytest.raises(TypeError, match="for fc_weight are int32, expected float32: convert"):
        module.set_params({"fc_weight": nd.ones((1, 2), dtype="int32")}, {})
    with pytest.raises(ValueError, match=r"shape \(5, 2\), the symbol expects \(1, 2\): leave"):
        module.set_params({"fc_weight": nd.ones((5, 2))}, {})
    assert values(module)["fc_weight"].tolist() == [[1, 2]]
