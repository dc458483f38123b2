"""The formats that are emulated for study, and the matrix products that are rounded to them.

MXNet 1.9.1 has no kernels of float8, and none that a policy could choose of TF32, in which cuDNN
multiplies float32 on GPUs of compute capability 8.0 and later. What these formats do to a training
is computed on a CPU: the operands of each matrix product are rounded to a format, and so is the
gradient of its result, which the products of the backward pass read. Products, sums and all other
tensors are float32, as in NVIDIA's Transformer Engine with float32 activations.
"""

from gluon_amp.base import registry
from gluon_amp.base.formats import FORMATS as ALL_FORMATS

FORMATS = ("tfloat32", "float8_e4m3", "float8_e5m2")

# The three products of a layer: its result, the gradient of its data, that of its weight.
DIRECTIONS = ("forward", "data_gradient", "weight_gradient")

# Operator: how many of its inputs are operands of the product, the data first. A bias is added to
# the product. An RNN is no product, as those of its time steps are inside the operator.
_TWO = """
    Convolution Deconvolution FullyConnected dot batch_dot _np_dot
    _npi_matmul _npi_tensordot _npi_tensordot_int_axes
    _contrib_interleaved_matmul_encdec_qk _contrib_interleaved_matmul_encdec_valatt
    _contrib_interleaved_matmul_selfatt_valatt
""".split()
OPERANDS = {**dict.fromkeys(_TWO, 2), "_contrib_interleaved_matmul_selfatt_qk": 1}
EXAMPLES = ("Convolution", "FullyConnected", "dot")

# The input and the output have few values to average an error over. Wang et al. 2018
# (arXiv:1812.08011), who trained with 8 bits first, and Sun et al. 2019 ("Hybrid 8-bit Floating
# Point (HFP8) Training", NeurIPS) keep these layers in 16 bits.
END_REASON = "the {} product of the net, which 8-bit training keeps wide (arXiv:1812.08011)"


def is_product(op: str) -> bool:
    """Return whether the operands of an operator can be rounded to a format for study."""
    return registry.canonical(op) in OPERANDS


def has_8_bits(*formats: str) -> bool:
    """Return whether one of these formats has 8 bits, and so a scale for each tensor."""
    return any(ALL_FORMATS[name].bits <= 8 for name in formats)
