"""Train a character language model: an LSTM, or what --model names.

    python scripts/train_lstm.py --dtype float16

It needs no files: the text is the source code of Python's standard library.
"""

import sys

from gluon_amp.training.console.train_text import main

if __name__ == "__main__":
    sys.exit(main(prog="train_lstm.py"))
