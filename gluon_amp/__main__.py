"""Run `gluon_amp.cli` as `python -m gluon_amp`."""

import sys

from gluon_amp.cli import main

if __name__ == "__main__":
    sys.exit(main())
