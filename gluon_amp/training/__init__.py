"""The command `gluon-amp`: data, networks, runs, workers and tables. The library needs none."""
