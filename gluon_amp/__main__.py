"""The command `gluon-amp` as `python -m gluon_amp`."""

import sys

from gluon_amp_console import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m gluon_amp"))
