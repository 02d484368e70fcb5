"""Which problems do the tests of the CUDA GEMM families ask about: types, layouts, epilogues, sizes?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from rooftile.problem import Gemm

SM80_ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120a")
SM70_ARCHS = ("sm_70", "sm_90a")
WIDE = ("f16", "bf16", "tf32")
EIGHT_BIT = ("s8", "u8", "e4m3", "e5m2")


def dtypes_of(arch: str) -> tuple[str, ...]:
    """Types that gemm_sm80 multiplies there."""
    return (*WIDE, *(EIGHT_BIT if arch not in ("sm_80", "sm_86") else ("s8", "u8")))


def layouts(dtype: str) -> Iterator[dict[str, str]]:
    """Every layout that operands of the type can have."""
    k_last = dtype in EIGHT_BIT
    a, b = ("mk",) if k_last else ("mk", "km"), ("nk",) if k_last else ("kn", "nk")
    for x, y, z in product(a, b, ("mn", "nm")):
        yield {"a": x, "b": y, "c": z}


def problem(dtype: str, m: int = 2048, n: int = 2048, k: int = 2048, **more: object) -> Gemm:
    """A problem of that type in a layout that it can have."""
    if dtype in EIGHT_BIT:
        more = {"layout": {"b": "nk"}} | more
    return Gemm(m, n, k, dtype, **more)  # type: ignore[arg-type]


FULL = {"bias": "n", "activation": "gelu", "residual": True}
