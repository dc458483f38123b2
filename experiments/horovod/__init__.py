"""Horovod with two workers: built from its sources, two processes, float16 and bfloat16, and kills.

`requirements.txt` has the versions. gluon_amp is imported from this checkout.
"""
