"""Benchmarks of time and memory: gluon_amp, `mxnet.contrib.amp` and plain MXNet, in turns.

`suites` lists what is measured, as data. `work` runs one case in a process of its own, `measure`
times the cases, `profile` shows which kernels take the time, `report` writes tables and figures,
and `command` is the program.
"""
