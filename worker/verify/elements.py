"""Which numpy dtype holds the elements of a type, also of those that numpy itself does not know?"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from rooftile.launch.operands import numpy_dtype

Array = npt.NDArray[Any]

# Names in ml_dtypes, which registers them with numpy. e4m3 is the variant without infinities that NVIDIA's
# units compute with (PTX ISA, "Alternate Floating-Point Data Formats").
_ML_DTYPES = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def element_dtype(name: str) -> np.dtype[Any]:
    """The dtype of one element of `name` in memory; LaunchError for one that no array can hold."""
    if name in _ML_DTYPES:
        import ml_dtypes  # late: a quarter of a second that f32 never pays

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
        return dtype
    return numpy_dtype(name)


def representable(values: Array, name: str) -> Array:
    """The nearest numbers that the unit reads as they are: tf32 drops the 13 low bits of an f32 mantissa (PTX
    ISA, mma), by truncation or rounding, which nobody documents; there are none to drop in these."""
    if name != "tf32":
        return values
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFF_E000)
    return rounded.view(np.float32)
