"""Programs that produce the figures in `docs/`. They are not installed: run them from a checkout.

Run one with `python -m experiments.NAME`, or with its make target, as in `make zoo ARGS=--list`.
``--help`` lists the options. `benchmarks` has a script, `scripts/benchmark.py`, and is `make
benchmark`: it measures time and memory.

===================  =================  =========================================================
NAME                 make target        what it does
===================  =================  =========================================================
`ablation`           `make ablation`    trains without masters, without loss scaling, without pins
`address_sanitizer`  `make asan`        tests the C++ operators under AddressSanitizer
`arm64`              `make arm64`       trains on an emulated Linux arm64, without C++ kernels
`clients`            `make clients`     trains clients of MXNet, such as GluonCV, with every policy
`container`          `make container`   runs the lines of the Dockerfile without Docker, and trains
`cuda_kernels`                          runs the CUDA build without a GPU, to see what it launches
`edge`               `make edge`        finds the learning rates at which each dtype diverges
`floor_of_chance`    `make floor`       compares float32 with itself disturbed, and with each dtype
`handover`           `make handover`    installs PyTorch, hands networks over to it, and compares
`horovod`            `make horovod`     builds Horovod, trains with two workers, kills one, resumes
`input_benchmark`    `make input`       times image decoding against MXNet's `ImageRecordIter`
`matrix`             `make matrix`      trains and tests on every supported Python and numpy
`onnx_table`         `make onnx`        exports the zoos' networks to ONNX, and compares them
`operators`          `make operators`   calls every operator: is a second backward pass the same?
`open_sources`       `make lint`        opens each C++ source alone, where clang is there
`pins`               `make lint`        resolves the pins of constraints.txt for each Python
`preprocessing`                         compares decoders, resizing and crops with torchvision's
`redraw`                                writes pages and figures again from committed values
`run_notebooks`      `make notebooks`   executes the notebooks and writes their pages
`unchanged`                             records what gluon_amp does, and compares two records
`weights`            `make weights`     counts the files and lines of each part
`wheel`              `make wheel`       builds the wheel that contains compiled kernels
`wire`               `make wire`        adds gradients in 16 bits, and simulates many workers
`yardstick`          `make yardstick`   compares losses and gradients of each dtype with float64
`zoo_coverage`       `make zoo`         casts the networks of the Model Zoo and of GluonCV
===================  =================  =========================================================

`standalone`, `environments`, `debian` and `pages` are no programs: the first loads the modules of
gluon_amp that work without MXNet, the second makes virtual environments, the third bare Debian
systems, and the last fills in the pages of `docs/`, whose words stand in the pages.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the checkout
