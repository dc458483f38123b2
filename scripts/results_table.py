"""Train in float16, bfloat16 and float32 over several seeds, and compare their accuracies.

python scripts/results_table.py                  # handwritten digits, on any machine
"""

import sys

from gluon_amp.training.console.results import main

if __name__ == "__main__":
    sys.exit(main(prog="results_table.py"))
