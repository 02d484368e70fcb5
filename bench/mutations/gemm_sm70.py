"""Mistakes planted in gemm_sm70.

There are no asynchronous copies on sm_70, so nothing is committed and no groups are counted: two classes of
CLASSES have no counterpart. A wait is a __syncwarp() here: WMMA reads what other lanes wrote.
"""

from __future__ import annotations

from typing import Any

from bench.mutations import Edit, Mutation
from bench.mutations.shared import in_launched_tiles, in_shared_sources

MAIN = "gemm/gemm_sm70.cu"
COPY = "include/tile/copy.cuh"
STREAM = "include/tile/stream.cuh"
WMMA = "include/tile/wmma.cuh"
STORE = "include/epilogue/store.cuh"
SPLIT = "include/sched/split_k.cuh"
RASTER = "include/sched/raster.cuh"
ARGUMENTS = "include/sched/arguments.cuh"
FINISH = "include/epilogue/finish.cuh"
ELEMENT = "include/epilogue/element.cuh"

_TILE: dict[str, Any] = {
    "bm": 64,
    "bn": 64,
    "bk": 32,
    "warps_m": 2,
    "warps_n": 2,
    "fragment": "m16n16k16",
    "pad": 8,
    "resident": 1,
}
TWO = _TILE | {"stages": 2}
ONE = _TILE | {"stages": 1}
LAST = TWO | {"split_k": 3, "split_sum": "last"}
SECOND = TWO | {"split_k": 3, "split_sum": "second"}

SYNC = "__syncthreads();"
WARP = "__syncwarp();"


def _m(
    kind: str, name: str, *edits: Edit, values: Any = None, problem: Any = None, equivalent: str | None = None
) -> Mutation:
    return Mutation("gemm_sm70", kind, name, edits, values or TWO, problem or {}, equivalent)


MUTATIONS = (
    _m("dropped wait", "before rows of a piece are written again", Edit(MAIN, WARP, "", 0)),
    _m("dropped wait", "before rows of a piece are read", Edit(MAIN, WARP, "", 1)),
    _m(
        "dropped wait",
        "of lanes that read tails of different lengths",
        Edit(MAIN, WARP, "", 2),
        values=TWO | {"copy_a": 2, "copy_b": 2},
        equivalent="WMMA waits for the lanes of its warp (.sync); a barrier orders what they wrote",
    ),
    _m("dropped barrier", "after the first tile", Edit(MAIN, SYNC, "", 0)),
    _m("dropped barrier", "after the next tile", Edit(MAIN, SYNC, "", 2)),
    _m(
        "dropped barrier",
        "before the only stage is filled again",
        Edit(MAIN, "if (STAGES == 1 && more) __syncthreads();", ""),
        values=ONE,
    ),
    _m("dropped barrier", "before the flag's bytes hold pieces", Edit(MAIN, SYNC, "", 3), values=LAST),
    _m("dropped barrier", "before a part of k is counted", Edit(SPLIT, SYNC, "", 0), values=LAST),
    _m("dropped barrier", "before the count is read", Edit(SPLIT, SYNC, "", 1), values=LAST),
    _m(
        "wrong swizzle",
        "A is read as if its rows had no padding",
        Edit(WMMA, "OA::STRIDE)", "OA::STRIDE - 8)"),
    ),
    _m(
        "wrong swizzle",
        "B is read as if its rows had no padding",
        Edit(WMMA, "OB::STRIDE)", "OB::STRIDE - 8)"),
    ),
    _m(
        "wrong swizzle",
        "written as if rows had no padding",
        Edit(COPY, "Layout::at(row, at / CHUNK), x[0]", "row * Layout::ROW_BYTES + at / CHUNK * CHUNK, x[0]"),
    ),
    _m(
        "wrong stage index",
        "the stage that is read is filled",
        Edit(MAIN, "STAGES == 2 ? reading ^ 1 : 0", "reading"),
    ),
    _m(
        "wrong stage index",
        "A goes to the stage that is read",
        Edit(
            MAIN, "stream_a.store(ring_a + filling * A_BYTES);", "stream_a.store(ring_a + reading * A_BYTES);"
        ),
    ),
    _m(
        "wrong stage index",
        "the first stage is read for ever",
        Edit(MAIN, "reading = filling;", "reading = 0;"),
    ),
    _m(
        "wrong fragment",
        "rows of fragments of A exchanged",
        Edit(WMMA, "row + i * FM", "row + (MI - 1 - i) * FM"),
    ),
    _m(
        "wrong fragment",
        "k of A does not move on",
        Edit(WMMA, "OA::at(tile_a, row + i * FM, step)", "OA::at(tile_a, row + i * FM, 0)"),
    ),
    _m(
        "wrong fragment",
        "columns of sums exchanged",
        Edit(MAIN, "at + j * FN * 4", "at + (NI - 1 - j) * FN * 4"),
    ),
    _m(
        "wrong predicate",
        "one row too many is copied",
        Edit(COPY, "row < w.rows ? piece : 0", "row <= w.rows ? piece : 0", 1),
    ),
    _m(
        "wrong predicate",
        "one row too many is stored",
        Edit(STORE, "if (r < rows && c < columns)", "if (r <= rows && c < columns)"),
    ),
    _m(
        "wrong predicate",
        "a vector that is not all inside is stored whole",
        Edit(ELEMENT, "if (count >= V) {", "if (count >= V - 1) {", 1),
        values=TWO | {"vector": 2},
    ),
    _m(
        "stage reused early",
        "the only stage, once the warp has read it",
        Edit(MAIN, "if (STAGES == 1 && more) __syncthreads();", "if (STAGES == 1 && more) __syncwarp();"),
        values=ONE,
    ),
    _m(
        "stage reused early",
        "the next tile before this one is multiplied",
        Edit(
            MAIN,
            WARP,
            "if (more) { stream_a.store(ring_a + filling * A_BYTES);"
            " stream_b.store(ring_b + filling * B_BYTES); } __syncwarp();",
            2,
        ),
        values=ONE,
    ),
    _m(
        "stage reused early",
        "pieces before the last stage is read",
        Edit(MAIN, "__syncthreads();  // the next tile", "if (more) __syncthreads();  // the next tile"),
    ),
    _m("missing tail mask", "a piece is read whole", Edit(COPY, "left < PIECE ? left : PIECE;", "PIECE;")),
    _m("missing tail mask", "k is not cut", Edit(STREAM, "deep = least(v.k - from, DEPTH)", "deep = DEPTH")),
    _m(
        "missing tail mask", "rows are not cut", Edit(STREAM, "wide = least(v.left, EXTENT)", "wide = EXTENT")
    ),
    _m(
        "off-by-one k",
        "the last, short tile is left out",
        Edit(MAIN, "ceil_div(k, BK)", "static_cast<int>(k) / BK"),
    ),
    _m(
        "off-by-one k",
        "A comes one tile late",
        Edit(
            MAIN,
            "stream_a.load(ring_a, view_a, part.first + i + 1);",
            "stream_a.load(ring_a, view_a, part.first + i);",
        ),
    ),
    _m("off-by-one k", "one tile less", Edit(MAIN, "i < count; ++i", "i < count - 1; ++i")),
    _m(
        "off-by-one k",
        "a part of k begins one tile early",
        Edit(ARGUMENTS, "static_cast<long long>(split) * each", "static_cast<long long>(split) * (each - 1)"),
        values=SECOND,
    ),
    _m(
        "swapped operands",
        "fragments of A and B in a product",
        Edit(WMMA, "(sums[i][j], a[i], b);", "(sums[i][j], b, a[i]);"),
    ),
    _m(
        "swapped operands",
        "tiles of A and B",
        Edit(
            MAIN,
            "ring_a + reading * A_BYTES, ring_b + reading * B_BYTES, warp_row, warp_column",
            "ring_b + reading * B_BYTES, ring_a + reading * A_BYTES, warp_row, warp_column",
        ),
    ),
    _m(
        "swapped operands",
        "row and column of a tile",
        Edit(RASTER, "tile.row = along_m ? x : y;", "tile.row = along_m ? y : x;"),
    ),
    _m(
        "dropped wait",
        "before rows of a piece are read, fragments of 8 x 32",
        Edit(MAIN, WARP, "", 1),
        values=TWO | {"fragment": "m8n32k16"},
    ),
    _m("dropped barrier", "after the first tile, one stage", Edit(MAIN, SYNC, "", 0), values=ONE),
    _m("dropped barrier", "after the next tile, one stage", Edit(MAIN, SYNC, "", 2), values=ONE),
    _m(
        "wrong predicate",
        "an atomic that orders nothing",
        Edit("include/ptx/atom.cuh", "atom.acq_rel.gpu", "atom.relaxed.gpu"),
        values=LAST,
    ),
    _m(
        "missing tail mask",
        "the bias is read whole",
        Edit(FINISH, "if (i < columns) x[i] += Element", "x[i] += Element"),
        values=TWO | {"vector": 4},
        problem={"epilogue": {"bias": "n"}},
    ),
    _m(
        "missing tail mask",
        "C is read whole",
        Edit(FINISH, "BYTES<Out>, columns);", "BYTES<Out>, V);", 0),
        values=TWO | {"vector": 4},
        problem={"beta": "any"},
    ),
    _m(
        "missing tail mask",
        "the residual is read whole",
        Edit(FINISH, "BYTES<Out>, columns);", "BYTES<Out>, V);", 1),
        values=TWO | {"vector": 4},
        problem={"epilogue": {"residual": True}},
    ),
    _m(
        "dropped wait",
        "before rows of a piece are written again, fragments of 8 x 32",
        Edit(MAIN, WARP, "", 0),
        values=TWO | {"fragment": "m8n32k16"},
    ),
    *in_shared_sources("gemm_sm70", TWO, {}),
    *in_launched_tiles(MAIN, "gemm_sm70", TWO, LAST),
)
