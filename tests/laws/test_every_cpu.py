"""Law 16: a step of the emulation has the same bits with every instruction set.

`make test` repeats this folder under DNNL_MAX_CPU_ISA=AVX2 and AVX512_CORE.
"""

from gluon_amp import kernels
from tests.laws.training import Training
from tests.marks import needs_library


@needs_library
def test_a_step_of_the_emulation():
    found = []
    for _ in filter(kernels.select, kernels.INSTRUCTION_SETS):
        training = Training("adam")
        training.step(0)
        found.append(training.everything())
    kernels.select(None)
    assert len(found) > 1
    assert all(one == found[0] for one in found)
