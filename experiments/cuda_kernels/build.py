"""The folder with MXNet's CUDA build and the stand-ins for the libraries that it needs."""

import re
import sys
import zipfile
from pathlib import Path
from typing import Dict

from gluon_amp.kernels import build

WHEEL = "mxnet-cu112==1.9.1"
SOURCES = Path(__file__).parent / "stand_ins"

# The libraries that libmxnet.so names, by the beginning of their functions' names
LIBRARIES = {
    "cudart": "libcudart.so.11.0",
    "cudnn": "libcudnn.so.8",
    "cublas": "libcublas.so.11",
    "curand": "libcurand.so.10",
    "cusolver": "libcusolver.so.11",
    "cufft": "libcufft.so.10",
    "nvrtc": "libnvrtc.so.11.2",
    "nvtx": "libnvToolsExt.so.1",
    "nccl": "libnccl.so.2",
    "cuda": "libcuda.so.1",
}

# What a function does that no source of ours defines
CREATES = "int {0}(void** handle) {{ *handle = calloc(1, 256); return 0; }}"
SETS = "int {0}() {{ return 0; }}"
WRITES = "int {0}({before}{type}* to) {{ *to = {value}; return 0; }}"
CALLS = 'int {0}() {{ stand_in_note("CALL {0}"); return 0; }}'
# Functions that write a value of a type to an argument, counted from 0
WRITTEN = """
    0 to int 0: cudaGetDevice cudaDeviceCanAccessPeer cudaDeviceGetP2PAttribute cuDeviceGet
    11020 to int 0: cudaDriverGetVersion
    8 to int 0: cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
    0 to int 1: cublasGetMathMode
    8 to int 1: cudnnGetConvolutionForwardAlgorithmMaxCount
        cudnnGetConvolutionBackwardDataAlgorithmMaxCount
        cudnnGetConvolutionBackwardFilterAlgorithmMaxCount
    1024 to size_t 1: cudnnDropoutGetStatesSize
    1 to size_t 1: cudnnDropoutGetReserveSpaceSize nvrtcGetProgramLogSize
    8 to size_t 1: nvrtcGetPTXSize
    1048576 to size_t 4: cudnnGetRNNWorkspaceSize cudnnGetRNNTrainingReserveSize
    0 to size_t 6: cudnnGetConvolutionForwardWorkspaceSize
        cudnnGetConvolutionBackwardDataWorkspaceSize cudnnGetConvolutionBackwardFilterWorkspaceSize
"""
SETTING = re.compile(
    "Destroy|Set|Event|Stream|Graph|Error|Enable|Pointer|Synchronize|Configuration|Register|InitModule"
)
HEAD = '#include <cstdlib>\nextern "C" {\nvoid stand_in_note(const char*);\n'


def prepare(folder: Path) -> None:
    """Fill a folder with `site`, the CUDA build (500 MB to download), and `libraries`.

    A failure of pip or of the compiler is a `BuildError`.
    """
    library = folder / "site" / "mxnet" / "libmxnet.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        build.run([*download, WHEEL])
        with zipfile.ZipFile(next(folder.glob("mxnet_cu112-*.whl"))) as wheel:
            # without its metadata, by which gluon_amp would find a second MXNet, and CUDA missing
            files = [name for name in wheel.namelist() if name.startswith("mxnet/")]
            wheel.extractall(folder / "site", files)
    libraries = folder / "libraries"
    libraries.mkdir(exist_ok=True)
    functions = _functions(library)
    for name in LIBRARIES:  # the runtime first: the others write to its log
        _compile(name, functions.get(name, {}), libraries)


def _functions(library: Path) -> Dict[str, Dict[str, str]]:
    """Return the CUDA functions that MXNet needs, and the version of each, by library."""
    listed = build.run(["nm", "-D", "--undefined-only", str(library)])
    found: Dict[str, Dict[str, str]] = {}
    for name, version in re.findall(r" U (_*(?:cu|nccl|nv)\w+)(?:@(\S+))?", listed):
        plain = name.lstrip("_")
        fits = [beginning for beginning in LIBRARIES if plain.startswith(beginning)]
        of_runtime = plain.startswith("cuda")
        key = "cudart" if of_runtime else fits[0] if fits else "cuda"
        found.setdefault(key, {})[name] = version
    return found


def written() -> Dict[str, str]:
    """Return the sources of the functions in `WRITTEN`, by their names."""
    found = {}
    for value, kind, place, names in re.findall(r"(\d+) to (\w+) (\d):([^:]+)(?=\n)", WRITTEN):
        about = {"type": kind, "value": value, "before": "void*, " * int(place)}
        found.update({name: WRITES.format(name, **about) for name in names.split()})
    return found


def _compile(name: str, functions: Dict[str, str], folder: Path) -> None:
    own = SOURCES / f"{name}.cc"
    defined = own.read_text() if own.exists() else ""
    lines = [HEAD]
    for function in functions:
        if not re.search(rf"\b{function}\(", defined) and f"({function})" not in defined:
            creates = re.search(r"Create(?!Program)", function)
            form = CREATES if creates else SETS if SETTING.search(function) else CALLS
            lines.append(written().get(function) or form.format(function))
    others = folder / f"{name}_others.cc"
    others.write_text("\n".join([*lines, "}\n"]))
    version = next(filter(None, functions.values()), "")
    script = folder / f"{name}.map"
    script.write_text(f"{version} {{ global: *; }};\n")
    command = [*(build.compiler() or ["g++"]), "-O1", "-shared", "-fPIC", "-o"]
    command += [str(folder / LIBRARIES[name]), *([str(own)] if own.exists() else []), str(others)]
    command += [f"-Wl,-soname,{LIBRARIES[name]}", f"-Wl,--version-script={script}"]
    if name != "cudart":
        command += [str(folder / LIBRARIES["cudart"])]
    build.run(command)
