"""Print the variables that make another kind of this CPU, for `make test`.

DNNL_MAX_CPU_ISA takes instructions from it. GLUON_AMP_BFLOAT16 lets it compute natively in what it
emulates by choice.
"""

from gluon_amp.base import bfloat16, hardware

KINDS = ("AVX512_CORE", "AVX2")

if __name__ == "__main__":
    for kind in KINDS:
        if hardware.EXCLUDED_FLAGS[kind] & hardware.cpu_flags():
            print(f"DNNL_MAX_CPU_ISA={kind}")
    if bfloat16.has_kernels() and not bfloat16.is_native():
        print(f"{bfloat16.VARIABLE}=native")
