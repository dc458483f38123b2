"""Start a distributed run, here or on several machines.

    python scripts/launch.py -n 2 -s 1 -- python scripts/train_imagenet.py --kv-store dist_sync

With ``-H HOSTFILE`` it runs on the machines of that file, by ssh.
"""

import sys
from typing import Optional, Sequence

from gluon_amp.command_line import status_of
from gluon_amp.distributed.launcher import launch


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Launch; return the exit status of the run, or 2 if the options are wrong."""
    return status_of("launch.py", lambda: launch(arguments))


if __name__ == "__main__":
    sys.exit(main())
