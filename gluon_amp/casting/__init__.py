"""One Gluon net and its policy.

The ideas, and where they are:

- cast: all is decided and checked, then the net is changed (`cast.py`).
- change of class: a block, parameter or trainer gets a subclass of its own class (`classes.py`).
- trace: the graph of a block, its nodes labelled with the paths of blocks (`tracing.py`).
- binding: a block's policy, and its traces by all that they depend on (`traces`, `arguments.py`).
- cast block: it runs the trace of its binding, cast and lowered (`binding.py`).
- Python code: what a trace would freeze runs at each call (`every_call.py`).
- cast parameter: saved and loaded as its float32 master (`parameters.py`, `sharing.py`).
- statistic: what an operator writes; snapshots undo it (`statistics.py`, `snapshots.py`).
- stock objects around a cast net: parents, readers and trainers (`composing`, `callers`,
  `stale_trainer.py`).

`input_gradient.py` is a function built on these.
"""
