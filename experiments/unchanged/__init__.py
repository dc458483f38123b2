"""Record what gluon_amp does, and compare two records: a redesign changes nothing.

    python -m experiments.unchanged record --output DIR     # on the old code, and on the new code
    python -m experiments.unchanged compare BEFORE AFTER    # exit status 1 if they differ

Each group is a function that yields names and functions that return a text. Only what stays in a
redesign is called: the public names, MXNet, and each command's ``main``. `lines.DECISIONS` alone
names functions behind that.
"""
