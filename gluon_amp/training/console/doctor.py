"""`gluon-amp doctor`: report whether this machine can run a policy, and how."""

from typing import Optional, Sequence

from gluon_amp.base.messages import UsageError
from gluon_amp.inspection.doctor import DEVICES, doctor
from gluon_amp.inspection.selftest import show_selftest
from gluon_amp.policy import PRESETS
from gluon_amp.training.command_line import SWITCH, Parser, status_of


def main(arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp doctor") -> int:
    """Print the report; return 1 if the requested policy cannot run or a check failed."""
    parser = Parser(
        prog=prog,
        description="Report the installed versions, the devices, and which policies run here. "
        "The exit status is 1 if the requested policy cannot run.",
    )
    add = parser.add
    add("--policy", f"policy to run: {', '.join(PRESETS)}", metavar="P")
    add("--device", "device to run it on (default: a GPU if there is one)", choices=DEVICES)
    add("--json", "print JSON", SWITCH)
    checked = "check the installation by what the device computes instead (seconds)"
    add("--selftest", checked, SWITCH)
    add("--verbose", "also list the variables that are not set", SWITCH)
    options = parser.parse_args(arguments)

    def work() -> int:
        try:
            if options.selftest:
                return show_selftest(options.device, options.json)
            report = doctor(options.policy, options.device)
        except ValueError as error:
            raise UsageError(str(error)) from None
        print(report.to_json() if options.json else report.text(options.verbose))
        return 0 if report.ok else 1

    return status_of(parser.prog, work)
