"""The comparison of the table of CUDA kernels with what the CUDA build was seen to do."""

import pytest

from experiments.cuda_kernels import __main__ as command
from experiments.cuda_kernels.build import LIBRARIES, SOURCES
from gluon_amp.policy import cuda_kernels

SEEN = {
    op: source
    for table in (cuda_kernels.SWITCHES, cuda_kernels.ANY_DTYPE)
    for source, ops in table.items()
    for op in ops.split()
}


def test_a_table_that_is_right(capsys):
    assert command.compare(SEEN) == 0
    count = len(SEEN) - len(command.NOT_PROBED)
    assert capsys.readouterr().out == f"{count} of {count} operators are as in the table\n"


@pytest.mark.parametrize("seen", [None, "src/operator/nn/convolution.cu:124"])
def test_an_operator_that_is_not_as_in_the_table(seen, capsys):
    assert command.compare({**SEEN, "Convolution": seen}) == 1
    first = capsys.readouterr().out.splitlines()[0]
    says = "Convolution: the table says src/operator/nn/convolution.cu:123, MXNet "
    assert first == f"{says}{seen}"


def test_every_source_of_a_stand_in_belongs_to_a_library():
    assert {path.stem for path in SOURCES.iterdir()} <= set(LIBRARIES)


def test_a_wrong_pattern_is_one_sentence(capsys):
    with pytest.raises(SystemExit) as stop:
        command.main(["--networks", "["])
    assert stop.value.code == 2
    assert "expected a regular expression" in capsys.readouterr().err
