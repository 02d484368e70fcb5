"""Which lane holds which element: WMMA fragments, ldmatrix, stmatrix, movmatrix?

PTX ISA 9.7.14.4 and 9.7.14.5.15 to 17. The layout of a WMMA fragment is unspecified; here a seed picks one of
many valid ones, so that a kernel that relies on one is seen. It also depends on the fragment's role, type and
memory layout, as nothing says that two of them agree.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from emulator.arith.types import Array, raw

__all__ = ["gather", "ldmatrix", "movmatrix", "scatter", "stmatrix", "wmma_elements", "wmma_layout"]

# Elements of a lane: (shape, type) -> of A, of B; PTX ISA 9.7.14.4.1. f16 fragments hold elements more than
# once.
_ELEMENTS = {
    ("m16n16k16", "f16"): (16, 16), ("m8n32k16", "f16"): (16, 16), ("m32n8k16", "f16"): (16, 16),
    ("m16n16k16", "bf16"): (8, 8), ("m8n32k16", "bf16"): (4, 16), ("m32n8k16", "bf16"): (16, 4),
    ("m16n16k16", "8"): (8, 8), ("m8n32k16", "8"): (4, 16), ("m32n8k16", "8"): (16, 4),
    ("m16n16k8", "tf32"): (4, 4), ("m8n8k4", "f64"): (1, 1), ("m8n8k32", "4"): (8, 8),
}  # fmt: skip
_SIZES = {
    "m16n16k16": (16, 16, 16), "m8n32k16": (8, 32, 16), "m32n8k16": (32, 8, 16), "m16n16k8": (16, 16, 8),
    "m8n8k4": (8, 8, 4), "m8n8k32": (8, 8, 32),
}  # fmt: skip


def wmma_elements(shape: str, role: str, type_: str) -> int:
    """How many elements of a fragment a lane holds. `role` is "a", "b", "c" or "d". ValueError if there is
    none."""
    if shape not in _SIZES:
        raise ValueError(f"wmma has no shape {shape}")
    m, n, _ = _SIZES[shape]
    if role in ("c", "d"):
        return m * n // 32
    key = (shape, type_[1] if type_ in ("s8", "u8", "s4", "u4") else type_)
    if key not in _ELEMENTS:
        raise ValueError(f"wmma.{shape} has no fragments of {type_}")
    return _ELEMENTS[key][role == "b"]


@cache
def wmma_layout(shape: str, role: str, type_: str, seed: int, layout: str = "row") -> tuple[Array, Array]:
    """(row, column) of each element of each lane, two arrays (32, elements).

    Seed 0 deals the matrix out to the lanes in order, any other shuffles it. Rows and columns are those of
    the matrix: A is m x k, B is k x n, C and D (one layout) m x n.
    """
    count = wmma_elements(shape, role, type_)
    m, n, k = _SIZES[shape]
    rows, columns = {"a": (m, k), "b": (k, n)}.get(role, (m, n))
    places = np.arange(32 * count) % (rows * columns)
    if seed:
        side = role if role in ("a", "b") else "c"
        key = f"{shape} {side} {type_} {layout if side != 'c' else ''}"
        places = np.random.default_rng([seed, zlib.crc32(key.encode())]).permutation(places)
    row, column = np.divmod(places.reshape(32, count), columns)
    for array in (row, column):
        array.setflags(write=False)
    return row, column


def gather(layout: tuple[Array, Array], elements: Array) -> Array:
    """Matrices (warps, rows, columns) from fragments: warps x 32 x elements, of any shape that counts so."""
    place, rows, columns = _flat(layout)
    # Of an element that several lanes hold, the last one counts.
    holder = np.empty(rows * columns, np.intp)
    holder[place] = np.arange(place.size)
    warps = elements.shape[0]
    return np.take(elements.reshape(warps, -1), holder, axis=1).reshape(warps, rows, columns)


def scatter(layout: tuple[Array, Array], matrices: Array) -> Array:
    """Fragments (warps, 32, elements) from matrices (warps, rows, columns)."""
    place, _, _ = _flat(layout)
    warps = matrices.shape[0]
    return np.take(matrices.reshape(warps, -1), place, axis=1).reshape(warps, *layout[0].shape)


def _flat(layout: tuple[Array, Array]) -> tuple[Array, int, int]:
    row, column = layout
    rows, columns = int(row.max()) + 1, int(column.max()) + 1
    return (row * columns + column).reshape(-1), rows, columns


def ldmatrix(rows: Any, trans: bool = False) -> list[Array]:
    """ldmatrix.m8n8.b16 (9.7.14.5.15): registers (warps, 32) from rows (warps, matrices, 8, 4 words of 32
    bits).

    Lane 4g + t gets the elements 2t and 2t + 1 of row g, with `trans` of column g.
    """
    words = np.ascontiguousarray(raw(rows, 32))
    if trans:
        words = _transposed(words)
    flat = words.reshape(*words.shape[:2], 32)
    return [flat[:, i] for i in range(flat.shape[1])]


def stmatrix(registers: Sequence[Any], trans: bool = False) -> Array:
    """stmatrix.m8n8.b16 (9.7.14.5.16): rows (warps, matrices, 8, 4 words) from registers (warps, 32)."""
    words = np.stack([raw(r, 32) for r in registers], axis=1)
    words = np.ascontiguousarray(words).reshape(words.shape[0], -1, 8, 4)
    return _transposed(words) if trans else words


def movmatrix(a: Any) -> Array:
    """movmatrix.m8n8.trans.b16 (9.7.14.5.17): the transposed 8x8 matrix, registers (warps, 32)."""
    words = np.ascontiguousarray(raw(a, 32)).reshape(-1, 8, 4)
    return _transposed(words).reshape(-1, 32)


def _transposed(words: Array) -> Array:
    """8x8 matrices of 16 bits, two elements a word, transposed."""
    halves = words.view(np.uint16)
    return np.ascontiguousarray(halves.swapaxes(-1, -2)).view(np.uint32)
