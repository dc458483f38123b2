"""Programs that produce the figures in `docs/`. They are not installed: run them from a checkout.

`make TARGET ARGS='...'` or `python -m experiments.NAME ...` runs one; ``--help`` lists its options.

===================  =================  ==========================================================
NAME                 make target        what it does
===================  =================  ==========================================================
`results`            `make results`     trains every dtype over several seeds and compares accuracy
`benchmarks`         `make benchmark`   times gluon_amp, `mxnet.contrib.amp` and plain MXNet
`input_benchmark`    `make input`       times image decoding against MXNet's `ImageRecordIter`
`ablation`           `make ablation`    trains without masters, without loss scaling, without pins
`zoo_coverage`       `make zoo`         casts the networks of the Model Zoo and of GluonCV
`tensor_cores`                          compares the emulation of float16 with a GPU, bit by bit
`matrix`             `make matrix`      installs and trains on every supported Python and numpy
`run_notebooks`      `make notebooks`   executes the notebooks and writes their pages
===================  =================  ==========================================================

The command lines of `results` and `benchmarks` are `scripts/results_table.py` and
`scripts/benchmark.py`. `standalone` is not a program: it loads the modules of gluon_amp that work
without MXNet.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the checkout
