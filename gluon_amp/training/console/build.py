"""`gluon-amp build`: build the C++ kernels for CPUs before the first training needs them."""

from typing import Optional, Sequence

from gluon_amp.base.messages import UsageError, reason_of
from gluon_amp.kernels import obtain
from gluon_amp.kernels.build import BuildError
from gluon_amp.training.command_line import Parser, status_of


def main(arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp build") -> int:
    """Find or build the library and print its path; return the exit status."""
    parser = Parser(
        prog=prog,
        description="Build the C++ kernels for CPUs, if they are not built yet, and print where "
        "they are. It takes a minute or two.",
    )
    parser.parse_args(arguments)

    def work() -> int:
        try:
            print(f"The C++ kernels are in {obtain.find_or_build()}.")
        except BuildError as error:
            raise UsageError(f"the C++ kernels cannot be built: {reason_of(error)}.") from None
        return 0

    return status_of(parser.prog, work)
