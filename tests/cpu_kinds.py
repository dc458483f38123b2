"""Print the values of DNNL_MAX_CPU_ISA that take something from this CPU, for `make test`."""

from gluon_amp.base import hardware

KINDS = ("AVX512_CORE", "AVX2")

if __name__ == "__main__":
    print(*(kind for kind in KINDS if hardware.EXCLUDED_FLAGS[kind] & hardware.cpu_flags()))
