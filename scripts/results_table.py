"""Train in float16, bfloat16 and float32 over several seeds, and compare their accuracies.

python scripts/results_table.py                  # handwritten digits, on any machine
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # `experiments` is not installed

from experiments.results.command import main

if __name__ == "__main__":
    sys.exit(main())
