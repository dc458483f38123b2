"""Tests of gluon_amp/kernels."""
