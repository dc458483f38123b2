"""Runs MXNet's released CUDA build on a machine without a GPU, to see what it would launch.

MXNet chooses its kernels, checks dtypes and allocates memory on the host. Here the libraries of
CUDA are replaced by stand-ins (`stand_ins/`): their functions return success and compute nothing,
device memory is the host's, and every launch is written down. So MXNet's own code runs as with a
GPU, and the numbers mean nothing.

`operators` runs each operator on float16 arrays, and on bfloat16 arrays to learn from the error
where its dtype is chosen. `networks` casts and runs whole networks. Both run in a process of their
own. Linux, gcc, binutils and a numpy below 1.24 are needed.
"""
