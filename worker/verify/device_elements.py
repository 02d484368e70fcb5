"""How do arrays of any element type live on a GPU, where numpy's own types are all there is?

As words of the element's width: bf16 as uint16, fp8 as uint8, the rest as itself. Everything here takes `xp`,
numpy or CuPy, and uses only what both have, so the same code makes inputs and reads results on either.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.verify.device_integers import Integers
from worker.verify.elements import element_dtype
from worker.verify.poison import pattern

Array = Any
"""An array of numpy or CuPy."""

_WORDS = {"bf16": np.uint16, "e4m3": np.uint8, "e5m2": np.uint8, "tf32": np.float32}
_NATIVE = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "s8": np.int8, "u8": np.uint8, "s32": np.int32,
}  # fmt: skip
_UNSIGNED = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}
# Elements made or decoded at a time: 64-bit temporaries of them stay below 256 MiB.
CHUNK = 1 << 23


def storage(name: str) -> np.dtype[Any]:
    """The dtype of the words that hold elements of `name`."""
    if name in _WORDS:
        return np.dtype(_WORDS[name])
    return np.dtype(_NATIVE[name])


def poison_word(name: str) -> Any:
    """What memory for elements of `name` holds where nobody wrote: an unsigned word of their width."""
    return pattern(element_dtype(name))


def unsigned(array: Array) -> Array:
    """The same memory as unsigned words."""
    return array.view(_UNSIGNED[array.dtype.itemsize])


def decode(xp: Any, words: Array, name: str) -> Array:
    """The numbers that words of `name` stand for, exact: float32, or what holds them already."""
    if name == "bf16":
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name in ("e4m3", "e5m2"):
        return xp.asarray(_table(name))[words]
    return words


def encode(xp: Any, values: Array, name: str) -> Array:
    """float32 numbers of at most 1 as words of `name`, rounded to the nearest even."""
    if name == "bf16":
        bits = values.view(np.uint32)
        return (
            (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        ).astype(np.uint16)
    if name == "tf32":  # what the unit reads of an f32; see elements.representable
        return ((values.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFF_E000)).view(np.float32)
    if name in ("e4m3", "e5m2"):
        middles, codes = _steps(name)
        return xp.asarray(codes)[xp.searchsorted(xp.asarray(middles), values)]
    return values.astype(_NATIVE[name])


@cache
def _table(name: str) -> npt.NDArray[np.float32]:
    codes = np.arange(256, dtype=np.uint8)
    return codes.view(element_dtype(name)).astype(np.float32)


@cache
def _steps(name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """The values of at most 1 in rising order by their codes, and the middles between them."""
    values = _table(name)
    codes = np.flatnonzero(np.isfinite(values) & (np.abs(values) <= 1.0)).astype(np.uint8)
    codes = codes[codes != 0x80]  # one zero is enough
    codes = codes[np.argsort(values[codes], kind="stable")]
    ordered = values[codes]
    return ((ordered[1:].astype(np.float64) + ordered[:-1]) / 2).astype(np.float32), codes


def fill_random(
    xp: Any, words: Array, name: str, seed: int, stream: int, integers: Integers | None = None
) -> None:
    """Numbers uniform in [-1, 1] into a flat array of words; s8 and u8 as `integers` says, over their whole
    range where it is None.

    Element i depends on seed, stream and i alone (SplitMix64 over a counter), so numpy and CuPy give the
    same.
    """
    start = np.uint64(((seed * 0x9E37_79B9 + stream) * 0xD1B5_4A32_D192_ED03) & 0xFFFF_FFFF_FFFF_FFFF)
    for low in range(0, words.size, CHUNK):
        high = min(words.size, low + CHUNK)
        bits = _mix(xp.arange(low, high, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15) + start)
        if integers is None:
            words[low:high] = _from_bits(xp, bits, name)
        else:
            words[low:high] = _integers(xp, bits, integers).astype(words.dtype)


def _mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return z ^ (z >> np.uint64(31))


def _integers(xp: Any, bits: Array, of: Integers) -> Array:
    """The upper 24 bits say which number, the lower whether it stays."""
    width = np.uint64(of.high - of.low + 1)
    values = ((bits >> np.uint64(40)) * width >> np.uint64(24)).astype(np.int64) + of.low
    if of.density < 1.0:
        values[(bits & np.uint64(0xFF_FFFF)) >= np.uint64(of.density * 2**24)] = 0
    return values


def _from_bits(xp: Any, bits: Array, name: str) -> Array:
    if name in ("s8", "u8"):
        return (bits >> np.uint64(56)).astype(np.uint8).view(_NATIVE[name])
    if name == "s32":
        # As on the CPU: small numbers, so that what is summed from them stays exact.
        return (bits >> np.uint64(56)).astype(np.int32) - np.int32(128)
    if name == "f64":
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
    uniform = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    return encode(xp, uniform, name)


def checksum(xp: Any, data: Array) -> int:
    """A number that changes, but for chance, when any byte of a uint8 array does."""
    whole = data.size // 8 * 8
    words = data[:whole].view(np.uint64)
    total = 0
    for low in range(0, words.size, CHUNK):
        piece = words[low : low + CHUNK]
        index = xp.arange(low, low + piece.size, dtype=np.uint64)
        total += int(_mix(piece ^ (index * np.uint64(0x9E37_79B9_7F4A_7C15))).sum(dtype=np.uint64))
    rest = data[whole:]
    total += int(rest.astype(np.uint64).sum()) if rest.size else 0
    return total & 0xFFFF_FFFF_FFFF_FFFF
