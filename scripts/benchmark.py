"""Compare gluon_amp, mxnet.contrib.amp and plain float32: time and memory, in turns.

python scripts/benchmark.py --suite step
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # `experiments` is not installed

from experiments.benchmarks.command import main

if __name__ == "__main__":
    sys.exit(main())
