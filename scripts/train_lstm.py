"""Train a character language model, an LSTM, in float32, float16 or bfloat16.

    python scripts/train_lstm.py --dtype float16

It needs no files: the text is the source code of Python's standard library.
"""

import sys
from typing import Optional, Sequence

from gluon_amp.recipes import script
from gluon_amp.recipes.language.recipe import read
from gluon_amp.recipes.language.run import train


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Train; return the exit status."""

    def work() -> None:
        recipe = read(arguments)
        script.apply_wait_policy(recipe, arguments)
        train(recipe)

    return script.guarded(work)


if __name__ == "__main__":
    sys.exit(main())
