"""The compiled part of the package; all else about it is in setup.cfg."""

import sys

from setuptools import Extension, setup

# A plain shared library, which tg_lpe/ops/cpu/__init__.py finds beside itself; it needs only the compiler's headers.
# -ffp-contract=fast allows fused multiply-adds and nothing else: what is not a number stays so.
LIBRARY = Extension(
    "tg_lpe.ops.cpu._library",
    [f"tg_lpe/ops/csrc/{name}.cpp" for name in ("edges", "polynomials", "estimates", "layers", "eigenvectors")],
    depends=["tg_lpe/ops/csrc/common.h"],
    extra_compile_args=["-std=c++17", "-O3", "-g0", "-ffp-contract=fast", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    language="c++",
    optional=True,  # where it cannot be built, the package does without
)

setup(ext_modules=[] if sys.platform == "win32" else [LIBRARY])
