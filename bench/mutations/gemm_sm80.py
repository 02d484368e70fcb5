"""Mistakes planted in gemm_sm80 and what it shares."""

from __future__ import annotations

from typing import Any

from bench.mutations import Edit, Mutation
from bench.mutations.shared import in_launched_tiles, in_shared_sources

MAIN = "gemm/gemm_sm80.cu"
COPY = "include/tile/copy.cuh"
STAGES = "include/tile/stages.cuh"
STREAM = "include/tile/stream.cuh"
ARGUMENTS = "include/sched/arguments.cuh"
FINISH = "include/epilogue/finish.cuh"
FRAGMENT = "include/tile/fragment.cuh"
STORE = "include/epilogue/store.cuh"
SPLIT = "include/sched/split_k.cuh"
RASTER = "include/sched/raster.cuh"

_TILE: dict[str, Any] = {"bm": 64, "bn": 64, "bk": 32, "warps_m": 2, "warps_n": 2, "stages": 3, "resident": 1}
PLAIN = _TILE | {"lookahead": False}
AHEAD = _TILE | {"lookahead": True}
STAGED = PLAIN | {"store": "staged", "vector": 8}
DIRECT = PLAIN | {"store": "direct", "vector": 2}
LAST = PLAIN | {"split_k": 3, "split_sum": "last"}
SECOND = PLAIN | {"split_k": 3, "split_sum": "second"}
A_KM = {"layout": {"a": "km", "b": "kn"}}
BIAS = {"epilogue": {"bias": "n"}}
B_NK = {"layout": {"a": "mk", "b": "nk"}}

WAIT = "ptx::cp_async_wait_group<STAGES - 2>();"
COMMIT = "ptx::cp_async_commit_group();"
SYNC = "__syncthreads();"


def _m(
    kind: str, name: str, *edits: Edit, values: Any = None, problem: Any = None, equivalent: str | None = None
) -> Mutation:
    return Mutation("gemm_sm80", kind, name, edits, values or PLAIN, problem or {}, equivalent)


MUTATIONS = (
    _m("dropped wait", "of the main loop", Edit(MAIN, WAIT, "", 1)),
    _m("dropped wait", "before the first fragments", Edit(MAIN, WAIT, "", 0), values=AHEAD),
    _m("dropped wait", "for the next tile", Edit(MAIN, WAIT, "", 2), values=AHEAD),
    _m("dropped commit", "of the first tiles", Edit(MAIN, COMMIT, "", 0)),
    _m("dropped commit", "in the loop", Edit(MAIN, COMMIT, "", 1)),
    _m("dropped commit", "in the loop, fragments ahead", Edit(MAIN, COMMIT, "", 1), values=AHEAD),
    _m("dropped commit", "only where k has ended", Edit(MAIN, COMMIT, "if (more) " + COMMIT, 1)),
    _m("dropped barrier", "of the main loop", Edit(MAIN, SYNC, "", 1)),
    _m("dropped barrier", "before the first fragments", Edit(MAIN, SYNC, "", 0), values=AHEAD),
    _m("dropped barrier", "for the next tile", Edit(MAIN, SYNC, "", 2), values=AHEAD),
    _m(
        "dropped barrier",
        "before the epilogue's pieces",
        Edit(MAIN, "if constexpr (RT_STAGED) __syncthreads();", ""),
        values=STAGED,
    ),
    _m(
        "dropped barrier",
        "before rows of a piece are written again",
        Edit(STORE, "__syncwarp();", "", 0),
        values=STAGED,
    ),
    _m(
        "dropped barrier",
        "before rows of a piece are read",
        Edit(STORE, "__syncwarp();", "", 1),
        values=STAGED,
    ),
    _m("dropped barrier", "before a part of k is counted", Edit(SPLIT, SYNC, "", 0), values=LAST),
    _m("dropped barrier", "before the count is read", Edit(SPLIT, SYNC, "", 1), values=LAST),
    _m("wrong group count", "one more may be under way", Edit(MAIN, WAIT, WAIT.replace("- 2", "- 1"), 1)),
    _m(
        "wrong group count",
        "one more, at the start",
        Edit(MAIN, WAIT, WAIT.replace("- 2", "- 1"), 0),
        values=AHEAD,
    ),
    _m(
        "wrong group count",
        "one more, for the next tile",
        Edit(MAIN, WAIT, WAIT.replace("- 2", "- 1"), 2),
        values=AHEAD,
    ),
    _m(
        "wrong group count",
        "A and B each in a group of their own",
        Edit(MAIN, "stream_b.load(to_b,", COMMIT + " stream_b.load(to_b,"),
        Edit(MAIN, WAIT, WAIT.replace("STAGES - 2", "2 * STAGES - 4"), 1),
    ),
    _m(
        "wrong swizzle",
        "A, read as if it were not",
        Edit(
            FRAGMENT,
            "tile + Place::at(row + lane % 16, step * 2 + lane / 16)",
            "tile + (row + lane % 16) * Place::PITCH + (step * 2 + lane / 16) * CHUNK",
        ),
    ),
    _m(
        "wrong swizzle",
        "B, read as if it were not",
        Edit(
            FRAGMENT,
            "tile + Place::at(column + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2)",
            "tile + (column + lane % 8 + lane / 16 * 8) * Place::PITCH + (step * 2 + lane / 8 % 2) * CHUNK",
        ),
        problem=B_NK,
    ),
    _m(
        "wrong swizzle",
        "written as if it were not",
        Edit(COPY, "Layout::at(row, at / CHUNK)", "row * Layout::PITCH + at / CHUNK * CHUNK"),
    ),
    _m(
        "wrong stage index",
        "the ring skips its first stage when read",
        Edit(MAIN, "reading = reading + 1 == STAGES ? 0", "reading = reading + 1 == STAGES ? 1"),
    ),
    _m(
        "wrong stage index",
        "filled one stage too early",
        Edit(MAIN, "filling = STAGES - 1;", "filling = STAGES - 2;"),
    ),
    _m(
        "wrong stage index",
        "the first tiles one stage on",
        Edit(
            MAIN, "stream_a.load(ring_a + i * A_BYTES,", "stream_a.load(ring_a + (i + 1) % STAGES * A_BYTES,"
        ),
    ),
    _m(
        "wrong stage index",
        "the next fragments from this stage",
        Edit(
            MAIN,
            "load(ring_a + reading * A_BYTES, ring_b + reading * B_BYTES,",
            "load(from_a, ring_b + reading * B_BYTES,",
        ),
        values=AHEAD,
    ),
    _m(
        "wrong fragment",
        "quarters of A exchanged",
        Edit(
            FRAGMENT,
            "tile + Place::at(row + lane % 16, step * 2 + lane / 16)",
            "tile + Place::at(row + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2)",
        ),
    ),
    _m(
        "wrong fragment",
        "quarters of A stored k x m exchanged",
        Edit(
            FRAGMENT,
            "tile + Place::at(step * STEP + lane % 8 + lane / 16 * 8, row / 8 + lane / 8 % 2)",
            "tile + Place::at(step * STEP + lane % 16, row / 8 + lane / 16)",
        ),
        problem=A_KM,
    ),
    _m(
        "wrong fragment",
        "rows and columns of a lane's sums exchanged",
        Edit(STORE, "g = lane / 4, t = lane % 4;", "g = lane % 8, t = lane / 8;", 0),
        values=DIRECT,
    ),
    _m(
        "wrong predicate",
        "one row too many is copied",
        Edit(COPY, "row < w.rows ? piece : 0", "row <= w.rows ? piece : 0"),
    ),
    _m(
        "wrong predicate",
        "one row too many is stored",
        Edit(STORE, "if (r < rows) {", "if (r <= rows) {"),
        values=DIRECT,
    ),
    _m(
        "wrong predicate",
        "a vector that is not all inside is stored whole",
        Edit("include/epilogue/element.cuh", "if (count >= V) {", "if (count >= V - 1) {", 1),
        values=DIRECT,
    ),
    _m(
        "wrong predicate",
        "one row too many is stored from pieces",
        Edit(STORE, "if (r < rows && c < columns)", "if (r <= rows && c < columns)"),
        values=STAGED,
    ),
    _m(
        "stage reused early",
        "filled before the others have read it",
        Edit(MAIN, "            " + WAIT + "\n            " + SYNC, "            " + WAIT),
        Edit(MAIN, COMMIT, COMMIT + SYNC, 1),
    ),
    _m(
        "stage reused early",
        "one tile more under way than there are stages",
        Edit(MAIN, "i < STAGES - 1; ++i", "i < STAGES; ++i"),
        Edit(MAIN, "filling = STAGES - 1;", "filling = 0;"),
        Edit(MAIN, "const bool more = i + STAGES - 1 < count", "const bool more = i + STAGES < count"),
        Edit(MAIN, "part.first + i + STAGES - 1", "part.first + i + STAGES", 0),
        Edit(MAIN, "part.first + i + STAGES - 1", "part.first + i + STAGES", 0),
        Edit(MAIN, WAIT, WAIT.replace("- 2", "- 1"), 1),
    ),
    _m(
        "stage reused early",
        "pieces before the last stage is read",
        Edit(MAIN, "if constexpr (RT_STAGED) __syncthreads();", "if constexpr (RT_STAGED) __syncwarp();"),
        values=STAGED,
    ),
    _m("missing tail mask", "a piece is copied whole", Edit(COPY, "left < PIECE ? left : PIECE;", "PIECE;")),
    _m("missing tail mask", "k is not cut", Edit(STREAM, "deep = least(v.k - from, DEPTH)", "deep = DEPTH")),
    _m(
        "missing tail mask", "rows are not cut", Edit(STREAM, "wide = least(v.left, EXTENT)", "wide = EXTENT")
    ),
    _m(
        "missing tail mask",
        "columns are not cut when stored",
        Edit(STORE, "row + r, column + c, columns - c);", "row + r, column + c, VECTOR);"),
        values=DIRECT,
    ),
    _m(
        "off-by-one k",
        "the last, short tile is left out",
        Edit(MAIN, "ceil_div(k, BK)", "static_cast<int>(k) / BK"),
    ),
    _m("off-by-one k", "one tile less", Edit(MAIN, "i < count; ++i", "i < count - 1; ++i")),
    _m(
        "off-by-one k",
        "tiles come one late",
        Edit(MAIN, "part.first + i + STAGES - 1", "part.first + i + STAGES - 2", 0),
    ),
    _m(
        "off-by-one k",
        "a part of k begins one tile early",
        Edit(ARGUMENTS, "static_cast<long long>(split) * each", "static_cast<long long>(split) * (each - 1)"),
        values=SECOND,
    ),
    _m(
        "swapped operands",
        "neighbouring fragments of B",
        Edit(STAGES, "OB::load_b2(b[j], b[j + 1],", "OB::load_b2(b[j + 1], b[j],"),
    ),
    _m(
        "swapped operands",
        "tiles of A and B",
        Edit(MAIN, "fragments[0].load(from_a, from_b,", "fragments[0].load(from_b, from_a,"),
    ),
    _m(
        "swapped operands",
        "row and column of a tile",
        Edit(RASTER, "tile.row = along_m ? x : y;", "tile.row = along_m ? y : x;"),
    ),
    _m(
        "dropped barrier",
        "before the flag is written",
        Edit(MAIN, SYNC, "", 3),
        values=LAST,
        equivalent="whoever writes the flag has met all others at the barrier in front of the count",
    ),
    _m("dropped wait", "of the main loop, two stages", Edit(MAIN, WAIT, "", 1), values=PLAIN | {"stages": 2}),
    _m(
        "dropped wait", "of the main loop, five stages", Edit(MAIN, WAIT, "", 1), values=PLAIN | {"stages": 5}
    ),
    _m(
        "dropped wait", "for the next tile, two stages", Edit(MAIN, WAIT, "", 2), values=AHEAD | {"stages": 2}
    ),
    _m(
        "dropped commit",
        "of the first tiles, two stages",
        Edit(MAIN, COMMIT, "", 0),
        values=PLAIN | {"stages": 2},
    ),
    _m("dropped commit", "of the first tiles, fragments ahead", Edit(MAIN, COMMIT, "", 0), values=AHEAD),
    _m(
        "dropped barrier",
        "of the main loop, two stages",
        Edit(MAIN, SYNC, "", 1),
        values=PLAIN | {"stages": 2},
    ),
    _m(
        "dropped barrier",
        "of the main loop, copies through registers",
        Edit(MAIN, SYNC, "", 1),
        values=PLAIN | {"stages": 2, "copy_a": "plain", "copy_b": "plain"},
    ),
    _m("dropped barrier", "of the main loop, B stored n x k", Edit(MAIN, SYNC, "", 1), problem=B_NK),
    _m(
        "wrong group count",
        "one more, five stages",
        Edit(MAIN, WAIT, WAIT.replace("- 2", "- 1"), 1),
        values=PLAIN | {"stages": 5},
    ),
    _m(
        "wrong group count",
        "one more, two stages",
        Edit(MAIN, WAIT, WAIT.replace("- 2", "- 1"), 1),
        values=PLAIN | {"stages": 2},
    ),
    _m(
        "stage reused early",
        "filled before the others have read it, fragments ahead",
        Edit(MAIN, SYNC, "", 2),
        Edit(
            MAIN,
            "fragments[step % 2].multiply(sums);",
            "fragments[step % 2].multiply(sums); if (step + 1 == STEPS && i + 1 < count) __syncthreads();",
        ),
        values=AHEAD,
    ),
    _m(
        "stage reused early",
        "the flag before the last stage is read",
        Edit(MAIN, "__syncthreads();  // the last stage is read, so its bytes can hold the flag", ""),
        Edit(SPLIT, SYNC, "__syncwarp();", 0),
        values=LAST,
    ),
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
        values=STAGED,
        problem=BIAS,
    ),
    _m(
        "missing tail mask",
        "C is read whole",
        Edit(FINISH, "BYTES<Out>, columns);", "BYTES<Out>, V);", 0),
        values=STAGED,
        problem={"beta": "any"},
    ),
    _m(
        "missing tail mask",
        "the residual is read whole",
        Edit(FINISH, "BYTES<Out>, columns);", "BYTES<Out>, V);", 1),
        values=STAGED,
        problem={"epilogue": {"residual": True}},
    ),
    _m("dropped commit", "in the loop, five stages", Edit(MAIN, COMMIT, "", 1), values=PLAIN | {"stages": 5}),
    *in_shared_sources("gemm_sm80", PLAIN, {}),
    *in_launched_tiles(MAIN, "gemm_sm80", PLAIN, LAST),
    _m(
        "wrong number",
        "a scaled sum of integers is cut off",
        Edit("include/ptx/cvt.cuh", "cvt.rni.s32.f64", "cvt.rzi.s32.f64"),
        values=PLAIN | {"bk": 64},
        problem={"dtype": "s8", "layout": {"a": "mk", "b": "nk"}},
    ),
)
