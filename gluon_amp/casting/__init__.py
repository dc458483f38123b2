"""One Gluon net and its policy.

The ideas, and their files:

- Cast: all is decided and checked, then the net is changed (cast.py).
- Change of class: a block, parameter or trainer gets a subclass of its own class (classes.py).
- Trace: the graph of a block, each node labelled with the path of its block (tracing.py).
- Binding: a block's policy, and its traces by all that they depend on (traces.py, arguments.py).
- Cast block: it runs the trace that its binding selects, cast and lowered (binding.py).
- Python code: what a trace would freeze runs at each call (every_call.py).
- Cast parameter: it is saved and loaded as its float32 master (parameters.py, sharing.py).
- Statistic: what an operator writes; a snapshot undoes it (statistics.py, snapshots.py).
- Stock callers: parents, readers and trainers of a cast net that are not cast themselves
  (composing.py, callers.py, stale_trainer.py).

`input_gradient` is a function built on these.
"""
