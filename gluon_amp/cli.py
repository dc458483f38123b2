"""The command `python -m gluon_amp`."""

import argparse
from typing import List, Optional

from gluon_amp.inspection.doctor import DEVICES, doctor
from gluon_amp.inspection.selftest import show_selftest
from gluon_amp.policy import PRESETS


def main(argv: Optional[List[str]] = None) -> int:
    """Run the command and return its exit status.

    Parameters
    ----------
    argv : list of str, optional
        Arguments without the program's name. Defaults to those of the process.

    Returns
    -------
    int
        0, or 1 if the requested policy cannot run, or a check of the self-test failed.

    Raises
    ------
    SystemExit
        With status 2 for an argument that is not accepted, and 0 after `--help`.
    """
    parser = argparse.ArgumentParser(
        prog="python -m gluon_amp", description="Mixed precision for MXNet 1.9.1."
    )
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    command = commands.add_parser(
        "doctor",
        help="report whether this machine can run a policy, and how",
        description="Report the installed versions, the devices, and which policies run here. "
        "The exit status is 1 if the requested policy cannot run.",
    )
    command.add_argument("--policy", metavar="P", help=f"policy to run: {', '.join(PRESETS)}")
    command.add_argument(
        "--device", choices=DEVICES, help="device to run it on (default: a GPU if there is one)"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "--selftest",
        action="store_true",
        help="check laws, arithmetic, speed and memory on the device instead (at most ten minutes)",
    )
    arguments = parser.parse_args(argv)
    try:
        if arguments.selftest:
            return show_selftest(arguments.device, arguments.json)
        report = doctor(arguments.policy, arguments.device)
    except ValueError as error:
        command.exit(2, f"{command.prog}: {error}\n")
    print(report.to_json() if arguments.json else report)
    return 0 if report.ok else 1
