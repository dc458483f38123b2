"""Benchmarks of time and memory: gluon_amp, `mxnet.contrib.amp` and plain MXNet, in turns.

- `suites` and `families` list what is measured, as data.
- `work` runs one case with MXNet in a process of its own, and `peer_torch` runs one with PyTorch;
  `serve` is what both do.
- `measure` times the cases in turns, and `profile` shows which kernels take the time and counts
  changes of layout.
- `report` makes tables and figures, and `command` is the program.
"""
