"""`python -m gluon_amp doctor`: whether this machine can run a policy, and how."""

import argparse
import sys
from typing import List, Optional

from gluon_amp.inspection.doctor import DEVICES, doctor
from gluon_amp.policy import PRESETS


def main(argv: Optional[List[str]] = None) -> int:
    """Run a command; return 0, 1 where the policy asked for cannot run, or 2 for a bad option."""
    parser = argparse.ArgumentParser(
        prog="python -m gluon_amp", description="Mixed precision for MXNet 1.9.1."
    )
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    command = commands.add_parser(
        "doctor",
        help="tell whether this machine can run a policy, and how",
        description="Tell what is installed, which devices there are, and which policies run here. "
        "The exit status is 1 where the policy asked for cannot run.",
    )
    command.add_argument(
        "--policy", metavar="P", help=f"policy that is to run: {', '.join(PRESETS)}"
    )
    command.add_argument(
        "--device", choices=DEVICES, help="where it is to run (default: a GPU if there is one)"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    try:
        report = doctor(args.policy, args.device)
    except ValueError as error:
        command.exit(2, f"{command.prog}: {error}\n")
    print(report.to_json() if args.json else report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
