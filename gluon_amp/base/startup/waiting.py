"""How OpenMP's threads wait between two operators: asleep, or actively, which wakes them sooner.

libgomp reads OMP_WAIT_POLICY when MXNet loads it, so a program that has imported MXNet must start
anew to change it. Active waiting takes 8 % off a ResNet-50 step of an idle machine. It ruins a busy
one, since threads that wait take the cores from those that work.
"""

import os
import sys
from typing import Optional

VARIABLE = "OMP_WAIT_POLICY"
POLICIES = ("active", "passive")


def apply(policy: Optional[str]) -> None:
    """Start this program anew with a policy, unless it is None or the environment has one.

    The process keeps its number, its files and its arguments.
    """
    if policy is None or VARIABLE in os.environ:
        return
    # orig_argv, from Python 3.10 on, includes the options of the interpreter
    arguments = getattr(sys, "orig_argv", ["", *sys.argv])[1:]
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *arguments], {**os.environ, VARIABLE: policy})
