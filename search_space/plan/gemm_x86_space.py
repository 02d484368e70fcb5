"""Which parameters does a schedule of gemm_x86 have, and which of their combinations are legal?

Two ways (`path`) through memory share the parameters:
  blocked  kernels/x86/gemm.c: blocks of A and B in the caches, packed or not, a tile of C in registers
  stream   kernels/x86/gemm_stream.c: few rows; B passes once, in rows as wide as can be, sums wait in cache;
           kernels/x86/gemm_dots.c where B is stored n x k
A parameter that a path has no use for has one legal value there, so that no kernel is tried twice.
"""

from __future__ import annotations

from rooftile.problem import Problem

from search_space.cpu_device import CpuDevice
from search_space.family import Parameter
from search_space.plan.gemm_x86_shape import Shape
from search_space.schedule import Schedule
from search_space.violation import Violation

NAME = "gemm_x86"
STREAM_ROWS = 64
"""Above this many rows B is worth packing, and the sums of a wide strip leave L2."""

_ROWS = {8: (1, 2, 3, 4, 5, 6, 8), 16: (1, 2, 4, 5, 6, 8, 10, 12, 14)}
_VECTORS = {8: (1, 2, 3, 4, 6), 16: (1, 2, 3, 4)}
_DOTS = (1, 2, 3, 4, 6)
_MC = (0, 24, 48, 72, 96, 144, 192, 288, 384, 768)
_NC = (0, 128, 256, 512, 768, 1024, 2048, 4096)
_KC = (0, 8, 12, 16, 24, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
_MOST_VISIT = 32
_UNROLL = (2, 3, 4, 6, 8, 12, 16)
_BLOCKED_UNROLL = (2, 4, 8)
_STREAM_UNROLL = (4, 6, 8, 12, 16)


def lanes(device: CpuDevice) -> int:
    """f32 in a vector."""
    return device.arch.lanes("f32")


def stream_possible(shape: Shape) -> bool:
    """Whether the stream path is offered for a shape at all."""
    return 0 < shape.m <= STREAM_ROWS


def parameters(problem: Problem, device: CpuDevice) -> tuple[Parameter, ...]:
    """The parameters; choices that would be the same as another here (a block over the whole size) are left
    out."""
    shape, width = Shape.of(problem), lanes(device)
    stream = stream_possible(shape)
    nr = {v * width for v in _VECTORS[width]} | ({*_DOTS} if shape.b_nk and stream else set())
    threads = _powers(device.cores)
    return (
        Parameter("mr", "tile", _ROWS[width], "rows of C in registers"),
        Parameter("nr", "tile", tuple(sorted(nr)), "columns of C in registers (stream, B n x k: its rows)"),
        Parameter("mc", "tile", _below(_MC, shape.m), "rows in a block of A, 0 all"),
        Parameter("nc", "tile", _below(_NC, shape.n), "columns in a block of B, 0 all"),
        Parameter("kc", "tile", _below(_KC, shape.k), "depth of a block, 0 all"),
        Parameter(
            "path",
            "movement",
            ("blocked", "stream") if stream else ("blocked",),
            "blocked: caches in blocks; stream: B once, in wide rows, for few rows of A",
        ),
        Parameter(
            "pack_a",
            "movement",
            ("no", "block", "whole"),
            "copy A into panels: not, block by block, all at first",
        ),
        Parameter("pack_b", "movement", (False, True), "copy B into panels"),
        Parameter(
            "prefetch",
            "movement",
            ("none", "panel", "block", "both"),
            "blocked: fetch the next panel to L2, the next block from memory, while one is computed",
        ),
        Parameter(
            "ahead", "movement", (0, 4, 8, 16), "stream: fetch so many cache lines ahead in each row of B"
        ),
        Parameter("pad", "layout", (0, 16), "floats between panels, against cache sets that coincide"),
        Parameter("threads", "roles", threads, "threads at most"),
        Parameter("split_batch", "roles", threads if shape.batch > 1 else (1,), "parts of the batch"),
        Parameter("split_n", "roles", threads, "parts of n among the threads"),
        Parameter(
            "split_k",
            "roles",
            tuple(sorted({*threads, *((4, 8, 16) if stream and device.cores > 1 else ())})),
            "parts of k; their sums are added in a fixed order",
        ),
        Parameter(
            "hand_out",
            "roles",
            (("no", "tiles", "columns", "parts") if stream else ("no", "tiles", "columns"))
            if device.cores > 1
            else ("no",),
            "what goes to whichever thread is free: tiles, blocks of columns, stream: parts of k, or of n "
            "where B is n x k; no: each has its share",
        ),
        Parameter("share", "roles", (False, True), "threads pack together what several of them need"),
        Parameter("hold", "order", ("a", "b", "c"), "what stays in registers in the inner loop, beside sums"),
        Parameter("outer", "order", ("n", "k"), "which blocks go round last: of n, or of k"),
        Parameter("inner", "order", ("rows", "columns"), "within a block: next tile below, or beside"),
        Parameter("unroll", "order", _UNROLL, "steps of k in a turn (stream: rows of B in a pass)"),
    )


def _powers(most: int) -> tuple[int, ...]:
    found = [1]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return tuple(found if most in found else [*found, most])


def _below(choices: tuple[int, ...], size: int) -> tuple[int, ...]:
    """0 and what is below the size: a block of the size or more is the whole."""
    return tuple(c for c in choices if c < max(size, 1))


def check(problem: Problem, device: CpuDevice, schedule: Schedule) -> list[Violation]:
    """Why the schedule is not legal; empty: it is."""
    shape = Shape.of(problem)
    found = _threads(shape, schedule)
    if schedule.text("path") == "stream":
        return found + _stream(shape, device, schedule)
    return found + _blocked(shape, device, schedule)


def _threads(shape: Shape, s: Schedule) -> list[Violation]:
    threads = s.integer("threads")
    parts = {name: s.integer(name) for name in ("split_batch", "split_n", "split_k")}
    product = parts["split_batch"] * parts["split_n"] * parts["split_k"]
    if s.text("hand_out") == "parts":
        return _parts(shape, s, threads // (parts["split_batch"] * parts["split_n"]), parts)
    if threads % product:
        numbers = {"threads": threads, **parts}
        message = f"{threads} threads cannot be a grid with {product} parts of batch, n and k"
        return [Violation("thread_grid", message, numbers)]
    if s.text("path") == "stream" and product != threads:
        message = f"stream shares batch, n and k among all {threads} threads, not {product} parts"
        return [Violation("stream_grid", message, {"threads": threads, **parts})]
    return []


def _parts(shape: Shape, s: Schedule, team: int, parts: dict[str, int]) -> list[Violation]:
    """Parts handed out on the stream path: of n where B is n x k, else of k, at least two for each thread."""
    numbers = {"threads": s.integer("threads"), **parts}
    if s.text("path") != "stream":
        return [Violation("hand_out", "parts are handed out on the stream path", {})]
    if shape.b_nk:
        alone = parts["split_n"] == s.integer("threads") > 1
        return (
            [] if alone else [Violation("hand_out", "parts of n are for threads that split n only", numbers)]
        )
    if s.integer("threads") % (parts["split_batch"] * parts["split_n"]) or team < 2:
        return [Violation("thread_grid", "no threads are left to share k", numbers)]
    if parts["split_k"] < 2 * team:
        return [Violation("hand_out", f"fewer than two parts for each of {team} threads", numbers)]
    return []


def _registers(device: CpuDevice, s: Schedule, sums: int, held: int, what: str) -> list[Violation]:
    needed, there = sums + held + 1, device.arch.vector_registers
    if needed <= there:
        return []
    message = f"{sums} vectors of sums, {held} of {what} and one more are over {there} registers"
    numbers = {"mr": s.integer("mr"), "nr": s.integer("nr"), "needed": needed, "registers": there}
    return [Violation("registers", message, numbers)]


def _fixed(rule: str, s: Schedule, why: str, **values: object) -> list[Violation]:
    """Parameters that have one legal value on this path."""
    return [
        Violation(rule, f"{name} is {want} {why}", {name: str(s[name])})
        for name, want in values.items()
        if (type(s[name]), s[name]) != (type(want), want)
    ]


def _vector_columns(device: CpuDevice, s: Schedule) -> list[Violation]:
    width, nr = lanes(device), s.integer("nr")
    if nr % width == 0:
        return []
    numbers = {"nr": nr, "lanes": width}
    return [Violation("whole_vectors", f"{nr} columns are no whole vectors of {width}", numbers)]


def _blocked(shape: Shape, device: CpuDevice, s: Schedule) -> list[Violation]:
    found = _vector_columns(device, s)
    mr, vectors, unroll = s.integer("mr"), s.integer("nr") // lanes(device), s.integer("unroll")
    hold = s.text("hold")
    if hold == "c":
        found.append(Violation("hold", "blocked holds a piece of a or b beside the sums, not c alone", {}))
    else:
        found += _registers(device, s, mr * vectors, mr if hold == "a" else vectors, hold)
    if unroll not in _BLOCKED_UNROLL:
        allowed = ", ".join(map(str, _BLOCKED_UNROLL))
        found.append(Violation("unroll", f"blocked unrolls k by {allowed}", {"unroll": unroll}))
    if shape.b_nk and not s.flag("pack_b"):
        found.append(Violation("pack_b", "B stored n x k has to be packed on this path", {}))
    found += _fixed("blocked", s, "where B is not streamed", ahead=0)
    if 0 < s.integer("kc") <= _MOST_VISIT:
        found.append(Violation("kc", "blocks are deeper than that", {"kc": s.integer("kc")}))
    pack_a, pack_b = s.text("pack_a"), s.flag("pack_b")
    if not pack_b and pack_a == "no":
        found += _fixed("pad", s, "where nothing is packed", pad=0)
        if s.text("prefetch") in ("block", "both"):
            found.append(Violation("prefetch", "no block is packed that could be fetched ahead", {}))
    if not s.integer("nc") or not s.integer("kc"):
        found += _fixed("outer", s, "where n or k is one block", outer="n")
    if pack_a == "whole" and not (s.integer("mc") or s.integer("nc") or s.integer("kc")):
        found.append(Violation("pack_a", "one block is the whole of A already", {}))
    return found + _sharing(s)


def _sharing(s: Schedule) -> list[Violation]:
    """Who takes which tiles, and who packs for whom."""
    found: list[Violation] = []
    parts_n, hand_out = s.integer("split_n"), s.text("hand_out")
    parts_m = s.integer("threads") // (s.integer("split_batch") * parts_n * s.integer("split_k"))
    if hand_out == "tiles":
        found += _fixed("hand_out", s, "where tiles are handed out", split_n=1, share=True)
        if parts_m == 1:
            found.append(
                Violation("hand_out", "there is one thread to hand tiles out to", {"parts": parts_m})
            )
        if s.integer("nc") and s.integer("kc"):
            found += _fixed("hand_out", s, "where tiles are handed out", outer="k")
    elif hand_out == "columns":
        found += _fixed("hand_out", s, "where columns are handed out", outer="n")
        numbers = {"split_n": parts_n, "parts of m": parts_m, "nc": s.integer("nc")}
        if parts_n == 1 or parts_m > 1 or not s.integer("nc"):
            found.append(Violation("hand_out", "columns go in blocks to threads that split n only", numbers))
        if s.text("pack_a") == "block":
            found.append(Violation("hand_out", "with columns handed out A is packed whole or not at all", {}))
    shared_a = s.text("pack_a") != "no" and parts_n > 1
    shared_b = s.flag("pack_b") and parts_m > 1
    if hand_out != "tiles" and not shared_a and not shared_b:
        found += _fixed("share", s, "where no two threads need the same panels", share=True)
    return found


def _deep(s: Schedule) -> list[Violation]:
    """Rows of B in a visit: some times what is unrolled."""
    kc, unroll = s.integer("kc"), s.integer("unroll")
    if kc == 0 or (kc % unroll == 0 and unroll < kc <= _MOST_VISIT):
        return []
    message = f"a visit to {kc} rows of B is not some times {unroll} rows, up to {_MOST_VISIT}"
    return [Violation("visit", message, {"kc": kc, "unroll": unroll})]


def _stream(shape: Shape, device: CpuDevice, s: Schedule) -> list[Violation]:
    why = "on the stream path"
    found: list[Violation] = []
    if not stream_possible(shape):
        numbers = {"rows": shape.m, "most": STREAM_ROWS}
        found.append(Violation("stream_rows", f"stream is for 1 to {STREAM_ROWS} rows", numbers))
    found += _fixed("stream", s, why, mc=0, pad=0, inner="rows", outer="n", prefetch="none")
    found += _fixed("stream", s, why, share=True)
    if s.text("hand_out") not in ("no", "parts"):
        found.append(Violation("hand_out", "stream hands out parts", {"hand_out": s.text("hand_out")}))
    found += _fixed("stream", s, why, pack_b=False, pack_a="no" if shape.b_nk else "whole")
    mr, nr, unroll = s.integer("mr"), s.integer("nr"), s.integer("unroll")
    if mr > max(shape.m, 1):
        found.append(Violation("stream_rows", f"{mr} rows of {shape.m}", {"mr": mr, "rows": shape.m}))
    if shape.b_nk:
        found += _fixed("stream", s, f"{why} with B n x k", nc=0, unroll=4, hold="c")
        if nr not in _DOTS:
            numbers = {"nr": nr}
            message = f"{nr} rows of B at once, not one of {', '.join(map(str, _DOTS))}"
            found.append(Violation("stream_dots", message, numbers))
        if 0 < s.integer("kc") <= _MOST_VISIT:
            message = "dot products run longer before the next row of A"
            found.append(Violation("stream_dots", message, {"kc": s.integer("kc")}))
        return found + _registers(device, s, mr * nr, nr, "b")
    found += _vector_columns(device, s) + _deep(s)
    vectors = nr // lanes(device)
    if s.text("hold") == "a":
        found.append(Violation("hold", "stream holds a piece of B, or a tile of sums", {}))
    elif s.text("hold") == "b":
        found += _fixed("stream", s, "where stream holds B", mr=1)
        found += _registers(device, s, vectors, unroll * vectors, "b")
    else:
        found += _registers(device, s, mr * vectors, vectors, "b")
        if unroll not in _STREAM_UNROLL:
            allowed = ", ".join(map(str, _STREAM_UNROLL))
            found.append(Violation("unroll", f"stream passes {allowed} rows of B", {"unroll": unroll}))
    return found
