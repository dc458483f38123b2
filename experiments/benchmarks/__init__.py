"""Benchmarks of time and memory: gluon_amp, `mxnet.contrib.amp` and plain MXNet, in turns.

`suites` lists what is measured, as data. `work` runs one case in a process of its own, `measure`
times the cases, `profile` shows which kernels take the time, `report` writes tables and figures,
and `command` is the program.

The suite of network families has files of its own: `families` is its data, `peer_torch` runs a case
with PyTorch, `products` counts operations and bytes, `reorders` changes of layout, `summary` takes
means, `families_report` writes its tables, and `family_run` does all of it.
"""
