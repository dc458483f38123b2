"""Start a distributed run, here or on several machines.

    python scripts/launch.py -n 2 -s 1 -- python scripts/train_imagenet.py --kv-store dist_sync

With ``-H HOSTFILE`` it runs on the machines of that file, by ssh.
"""

import sys

from gluon_amp.training.console.launch import main

if __name__ == "__main__":
    sys.exit(main(prog="launch.py"))
