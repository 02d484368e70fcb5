"""Mistakes planted in what the CUDA GEMM families share and large problems alone reach: places of tiles,
offsets past 32 bits, pitches, numbers that are not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.mutations import Edit, Mutation
from search_space.schedule import Value

RASTER = "include/sched/raster.cuh"
ARGUMENTS = "include/sched/arguments.cuh"
FINISH = "include/epilogue/finish.cuh"
ACTIVATION = "include/epilogue/activation.cuh"

BATCH = {"batch": 8}
RESIDUAL = {"epilogue": {"residual": True}}
RELU = {"epilogue": {"activation": "relu"}}
C = {"beta": "any"}

_BANDS = Edit(RASTER, "first = band * group;", "first = band;")
_OUT = "(o.out + (row * o.ld_out + column) * BYTES<Out>, columns)"
_STRIDE = "(ENTRY) * stride_{0} * tile::BYTES<Out>"


def in_shared_sources(
    family: str, values: Mapping[str, Value], problem: Mapping[str, Any]
) -> tuple[Mutation, ...]:
    """`values`: of a schedule that stores without TMA and does not split k; `problem`: at which it is
    legal."""

    def m(kind: str, name: str, *edits: Edit, at: Any = None, **more: Any) -> Mutation:
        return Mutation(family, kind, name, edits, {**values, **(at or {})}, {**problem, **more})

    def narrow(name: str, file: str, what: str, **more: Any) -> Mutation:
        return m("32-bit offset", name, Edit(file, what, f"static_cast<int>({what})"), **more)

    return (
        m("wrong tile", "bands of two begin one apart", _BANDS, at={"group": 2}),
        m("wrong tile", "bands of four begin one apart", _BANDS, at={"group": 4}),
        m(
            "wrong tile",
            "rows and columns of a band exchanged",
            Edit(RASTER, "along = along_m ? columns : rows", "along = along_m ? rows : columns"),
            at={"group": 1},
        ),
        m(
            "wrong tile",
            "the last band as wide as the others",
            Edit(RASTER, "across - first < group ? across - first : group", "group"),
            at={"group": 4},
        ),
        m(
            "wrong tile",
            "rows counted for columns",
            Edit(RASTER, "tiles = rows * columns;", "tiles = rows * rows;"),
            at={"raster": "m"},
        ),
        m(
            "wrong tile",
            "columns counted for rows",
            Edit(RASTER, "tiles = rows * columns;", "tiles = columns * columns;"),
            at={"raster": "n"},
        ),
        narrow("address of out", FINISH, "(row * o.ld_out + column) * BYTES<Out>"),
        narrow("address of C", FINISH, "(row * o.ld_c + column) * BYTES<Out>", **C),
        narrow("address of the residual", FINISH, "(row * o.ld_residual + column) * BYTES<Out>", **RESIDUAL),
        narrow("batch entry of out", ARGUMENTS, _STRIDE.format("out"), **BATCH),
        narrow("batch entry of C", ARGUMENTS, _STRIDE.format("c"), **BATCH, **C),
        narrow("batch entry of the residual", ARGUMENTS, _STRIDE.format("residual"), **BATCH, **RESIDUAL),
        m("wrong pitch", "C by that of out", Edit(FINISH, "row * o.ld_c", "row * o.ld_out"), **C),
        m(
            "wrong pitch",
            "the residual by that of out",
            Edit(FINISH, "row * o.ld_residual", "row * o.ld_out"),
            **RESIDUAL,
        ),
        m("wrong pitch", "out by that of C", Edit(FINISH, "row * o.ld_out", "row * o.ld_c"), **C),
        m(
            "wrong pitch",
            "batch entries of C by those of out",
            Edit(ARGUMENTS, "(ENTRY) * stride_c", "(ENTRY) * stride_out"),
            **BATCH,
            **C,
        ),
        m(
            "wrong pitch",
            "batch entries of the residual by those of out",
            Edit(ARGUMENTS, "(ENTRY) * stride_residual", "(ENTRY) * stride_out"),
            **BATCH,
            **RESIDUAL,
        ),
        m(
            "wrong number",
            "alpha 0 multiplies",
            Edit(ARGUMENTS, "(ALPHA == epilogue::ANY && alpha != 0.0f)", "ALPHA == epilogue::ANY"),
        ),
        m(
            "wrong number",
            "beta 0 reads C",
            Edit(FINISH, "(BETA_ == ANY && o.beta != 0.0f)", "BETA_ == ANY"),
            **C,
        ),
        m(
            "wrong number",
            "NaN is lost in an activation",
            Edit(ACTIVATION, "return x < 0.0f ? 0.0f : x;", "return x > 0.0f ? x : 0.0f;"),
            **RELU,
        ),
    )


def in_launched_tiles(
    main: str, family: str, values: Mapping[str, Value], last: Mapping[str, Value]
) -> tuple[Mutation, ...]:
    """In what gemm_sm70 and gemm_sm80 have in common: a block for each tile (of each part of k), operands
    copied by threads. `last`: values of a schedule whose last block adds up parts of k."""
    stream, copy = "include/tile/stream.cuh", "include/tile/copy.cuh"

    def m(kind: str, name: str, *edits: Edit, at: Any = None, **more: Any) -> Mutation:
        return Mutation(family, kind, name, edits, at or values, more)

    return (
        m(
            "wrong tile",
            "columns behind the second",
            Edit(main, "tile.column * BN", "(tile.column > 1 ? 1 : tile.column) * BN"),
        ),
        m(
            "wrong tile",
            "batch entries behind the second",
            Edit(main, "entry = tile.batch;", "entry = tile.batch > 1 ? 1 : tile.batch;"),
            **BATCH,
        ),
        m(
            "wrong tile",
            "rows counted for columns where parts of k are kept",
            Edit(main, "(entry * tiles_m + tile.row) * tiles_n", "(entry * tiles_m + tile.row) * tiles_m"),
            at=last,
        ),
        m(
            "wrong tile",
            "counters shared by every fourth",
            Edit(main, "counters + place,", "counters + place % 4,"),
            at=last,
        ),
        m(
            "wrong tile",
            "parts of k shared by every fourth",
            Edit(main, "partials_at + place * splits", "partials_at + place % 4 * splits"),
            at=last,
        ),
        m(
            "32-bit offset",
            "rows of an operand along k",
            Edit(stream, "v.first * v.pitch_bytes", "static_cast<int>(v.first * v.pitch_bytes)"),
            layout={"a": "mk", "b": "nk"},
        ),
        m(
            "32-bit offset",
            "rows of k",
            Edit(stream, "from * v.pitch_bytes", "static_cast<int>(from * v.pitch_bytes)"),
            layout={"a": "km", "b": "kn"},
        ),
        m("32-bit offset", "rows of a copy", Edit(copy, "const long long stride =", "const int stride =")),
        m(
            "32-bit offset",
            "batch entry of A",
            Edit(main, "entry * stride_a * BYTES<A>", "static_cast<int>(entry * stride_a * BYTES<A>)"),
            **BATCH,
        ),
        m(
            "wrong pitch",
            "batch entries of B by those of A",
            Edit(main, "entry * stride_b", "entry * stride_a"),
            **BATCH,
        ),
    )
