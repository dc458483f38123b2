"""The comparison of the table of CUDA kernels with what the CUDA build was seen to do."""

from experiments.cuda_kernels import __main__ as command
from experiments.cuda_kernels.build import LIBRARIES, SOURCES
from gluon_amp.graph import op_table
from gluon_amp.policy import cuda_kernels


def test_the_table_is_compared_with_what_was_seen(capsys):
    seen = command.table()
    count = len(seen) - len(command.NOT_PROBED)
    assert command.compare(seen) == 0
    assert capsys.readouterr().out == f"{count} of {count} operators are as in the table\n"
    assert command.compare({**seen, "Convolution": None}) == 1
    says = "Convolution: the table says src/operator/nn/convolution.cu:123, MXNet None\n"
    assert capsys.readouterr().out.startswith(says)
    assert seen["Flatten"] == "cudaMemcpy"


def test_the_library_lists_what_is_not_in_the_table():
    names = {op for _, _, names in op_table.GROUPS for op in names.split()}
    assert names - set(command.table()) == cuda_kernels.WITHOUT


def test_every_source_of_a_stand_in_belongs_to_a_library():
    assert {path.stem for path in SOURCES.iterdir()} <= set(LIBRARIES)
