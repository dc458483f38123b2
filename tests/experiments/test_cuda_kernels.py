"""The comparison of the table of CUDA kernels with what the CUDA build was seen to do."""

from experiments.cuda_kernels import __main__ as command
from experiments.cuda_kernels.build import LIBRARIES, SOURCES
from gluon_amp.graph import op_table


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
    names = {op for group in op_table.GROUPS for op in group.names}
    assert names - set(command.table()) == op_table.named("no_float16")


def test_every_source_of_a_stand_in_belongs_to_a_library():
    assert {path.stem for path in SOURCES.iterdir()} <= set(LIBRARIES)
