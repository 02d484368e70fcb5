"""Mistakes planted in gemm_sm90: its roles, barriers, copies by TMA, products of a warpgroup, clusters."""

from __future__ import annotations

from typing import Any

from bench.mutations import Edit, Mutation
from bench.mutations.shared import BATCH, in_shared_sources

MAIN = "gemm/gemm_sm90.cu"
PANELS = "include/tile/panels.cuh"
RING = "include/tile/ring.cuh"
PRODUCT = "include/tile/wgmma.cuh"
STORE = "include/epilogue/warpgroup.cuh"
SPLIT = "include/sched/split_k.cuh"
ARGUMENTS = "include/sched/arguments.cuh"
RASTER = "include/sched/raster.cuh"

ONE: dict[str, Any] = {
    "bm": 64, "bn": 64, "bk": 64, "stages": 3, "cluster_m": 1, "cluster_n": 1, "store": "direct", "vector": 2,
    "store_columns": 32, "store_panels": 1, "promotion": 0, "hint_a": "none", "hint_b": "none",
    "swizzle_a": 128, "swizzle_b": 128, "swap_ab": False, "hand_off": "cooperative", "consumers_m": 1,
    "consumers_n": 1, "registers": "40/248", "persistent": True, "raster": "m", "group": 2, "split_k": 1,
    "split_sum": "last",
}  # fmt: skip
"""One consumer of 64 x 64."""
TWO = ONE | {"bm": 128, "consumers_m": 2, "registers": "40/232"}
TALL = ONE | {"bm": 128}
"""Two products below each other in one consumer."""
TURNS = ONE | {"hand_off": "pingpong", "consumers_m": 2, "registers": "40/232"}
SHARE_B = ONE | {"cluster_m": 2}
SHARE_A = ONE | {"cluster_n": 2}
BOTH = ONE | {"cluster_m": 2, "cluster_n": 2}
TMA = {"store": "tma", "store_columns": 64, "store_panels": 1}
STORED = ONE | TMA
STORED_TWO = TWO | TMA
STORED_TURNS = TURNS | TMA
PANELS_2 = ONE | TMA | {"store_columns": 32, "store_panels": 2}
STAGED = ONE | {"store": "staged", "vector": 4}
LAST = ONE | {"split_k": 3}
SMALL = ONE | {"bm": 16}
NK = {"layout": {"a": "mk", "b": "nk"}}
KM = {"layout": {"a": "km", "b": "kn"}}
F32 = {"dtype": {"a": "bf16", "b": "bf16", "c": "f32"}}

WAIT_FULL = "wait<(CLUSTER > 1)>(full + turn.stage * 8, turn.parity);"
WAIT_EMPTY = "wait<(CLUSTER > 1)>(empty + turn.stage * 8, turn.parity ^ 1);"
WAIT_PRODUCT = "ptx::wgmma_wait_group_sync_aligned<1>();"
WAIT_TWO = WAIT_PRODUCT.replace("<1>", "<2>")
FENCE_PRODUCT = "ptx::wgmma_fence_sync_aligned();"
COMMIT_PRODUCT = "ptx::wgmma_commit_group_sync_aligned();"
RELEASE = "if (i > 0) release(before);"
LAST_RELEASE = "if (count > 0) release(before);"
EXPECT = (
    "ptx::mbarrier_arrive_expect_tx_shared_cta_b64(barrier, PanelsA::LOADED_BYTES + PanelsB::LOADED_BYTES);"
)
TILE = "const Tiles::One one = tiles.at(at, place);"
RESTART = TILE + " turn = Turn<STAGES>();"
LATE_TILE = "const Tiles::One one = tiles.at(mine > 2 ? at - tiles.step : at, place);"
ARRIVE_CLUSTER = "ptx::barrier_cluster_arrive_release_aligned();"
WAIT_CLUSTER = "ptx::barrier_cluster_wait_acquire_aligned();"
FENCE_PROXY = "ptx::fence_proxy_async_shared_cta();"
READERS = "READERS = 4 * SHARERS * PEERS;"
READ = "ptx::cp_async_bulk_wait_group_read<PANELS - 1>();"
OUT_SYNC = "ptx::bar_sync<WARPGROUP>(barrier);"
IF_INSIDE = "if (down < window.rows && across < window.columns) {"
COMMIT_STORE = "ptx::cp_async_bulk_commit_group();"
DEC = "ptx::setmaxnreg_dec_sync_aligned_u32<RT_PRODUCER_REGISTERS>();"
INC = "ptx::setmaxnreg_inc_sync_aligned_u32<RT_CONSUMER_REGISTERS>();"
MASK_B = "return ((1u << CLUSTER_M) - 1) << (column * CLUSTER_M);"


def _m(
    kind: str, name: str, *edits: Edit, values: Any = None, problem: Any = None, equivalent: str | None = None
) -> Mutation:
    return Mutation("gemm_sm90", kind, name, edits, values or ONE, problem or NK, equivalent)


MUTATIONS = (
    # -- waits and barriers
    _m("dropped wait", "for a stage to be full", Edit(MAIN, WAIT_FULL, "")),
    _m("dropped wait", "for a stage to be empty", Edit(MAIN, WAIT_EMPTY, "")),
    _m("dropped wait", "for the products before", Edit(MAIN, WAIT_PRODUCT, "")),
    _m("dropped wait", "for the last products", Edit(MAIN, "finish(sums);", "")),
    _m("dropped wait", "for a panel to be read", Edit(STORE, READ, ";"), values=STORED),
    _m("dropped wait", "for a panel to be read, two panels", Edit(STORE, READ, ";"), values=PANELS_2),
    _m(
        "dropped wait",
        "for stores before the end",
        Edit(MAIN, "if (threadIdx.x % WARPGROUP == 0) ptx::cp_async_bulk_wait_group<0>();", ""),
        values=STORED,
    ),
    _m(
        "dropped wait",
        "for panels to be read before the other's turn",
        Edit(MAIN, "if (threadIdx.x % WARPGROUP == 0) ptx::cp_async_bulk_wait_group_read<0>();", ""),
        values=STORED_TURNS,
    ),
    _m("dropped wait", "of the cluster at the start", Edit(MAIN, WAIT_CLUSTER, "", 0), values=SHARE_B),
    _m("dropped barrier", "behind the barriers' making", Edit(MAIN, "__syncthreads();", "", 0)),
    _m("dropped barrier", "before a panel is written", Edit(STORE, OUT_SYNC, "", 0), values=STORED),
    _m("dropped barrier", "before a panel is copied", Edit(STORE, OUT_SYNC, "", 1), values=STORED),
    _m("dropped barrier", "before a piece is read", Edit(STORE, "__syncwarp();", "", 0), values=STAGED),
    _m(
        "dropped barrier",
        "before a piece is written again",
        Edit(STORE, "__syncwarp();", "", 1),
        values=STAGED,
    ),
    _m(
        "dropped barrier",
        "before a part of k is counted",
        Edit(SPLIT, "ptx::bar_sync<THREADS>(barrier);", "", 0),
        values=LAST,
    ),
    _m(
        "dropped barrier",
        "before the other's turn to multiply",
        Edit(MAIN, "if (mine > 0) ptx::bar_sync<2 * WARPGROUP>(MULTIPLY_TURN + consumer);", ""),
        values=TURNS,
    ),
    _m(
        "dropped barrier",
        "before the other's turn to store",
        Edit(MAIN, "if (mine > 0) ptx::bar_sync<2 * WARPGROUP>(STORE_TURN + consumer);", ""),
        values=STORED_TURNS,
    ),
    # -- the same where others run beside: numbers in program order show none of these
    _m(
        "dropped wait",
        "for the products before, two blocks of rows",
        Edit(MAIN, WAIT_PRODUCT, ""),
        values=TALL,
    ),
    _m("dropped wait", "for the products before, A shared", Edit(MAIN, WAIT_PRODUCT, ""), values=SHARE_A),
    _m("dropped wait", "for the last products, two consumers", Edit(MAIN, "finish(sums);", ""), values=TWO),
    _m("dropped wait", "for the last products, in turns", Edit(MAIN, "finish(sums);", ""), values=TURNS),
    _m("dropped wait", "for a panel to be read, two consumers", Edit(STORE, READ, ";"), values=STORED_TWO),
    _m(
        "dropped wait",
        "of the cluster at the start, A shared",
        Edit(MAIN, WAIT_CLUSTER, "", 0),
        values=SHARE_A,
    ),
    _m(
        "dropped barrier",
        "behind the barriers' making, two consumers",
        Edit(MAIN, "__syncthreads();", "", 0),
        values=TWO,
    ),
    _m(
        "dropped barrier",
        "before a panel is copied, two panels",
        Edit(STORE, OUT_SYNC, "", 1),
        values=PANELS_2,
    ),
    _m(
        "dropped barrier",
        "before a panel is written, in turns",
        Edit(STORE, OUT_SYNC, "", 0),
        values=STORED_TURNS,
        equivalent="with one panel a tile the turn that is handed over says that it is read: the thread that "
        "waits for it arrives behind that",
    ),
    _m("dropped fence", "before the products, two consumers", Edit(PRODUCT, FENCE_PRODUCT, ""), values=TWO),
    _m("dropped fence", "before the products, both shared", Edit(PRODUCT, FENCE_PRODUCT, ""), values=BOTH),
    _m("bulk store without its fence", "two panels", Edit(STORE, FENCE_PROXY, ""), values=PANELS_2),
    _m("bulk store without its fence", "two consumers", Edit(STORE, FENCE_PROXY, ""), values=STORED_TWO),
    _m("dropped commit", "of the products, in turns", Edit(PRODUCT, COMMIT_PRODUCT, ""), values=TURNS),
    _m("dropped commit", "of the products, two consumers", Edit(PRODUCT, COMMIT_PRODUCT, ""), values=TWO),
    _m("wrong group count", "of products, two consumers", Edit(MAIN, WAIT_PRODUCT, WAIT_TWO), values=TWO),
    _m("wrong group count", "of products, A shared", Edit(MAIN, WAIT_PRODUCT, WAIT_TWO), values=SHARE_A),
    *(
        _m(
            "stage reused early",
            f"released before the products of the one before are waited for, {where}",
            Edit(MAIN, WAIT_PRODUCT, RELEASE + " " + WAIT_PRODUCT),
            Edit(MAIN, RELEASE, "", 1),
            values=values,
        )
        for where, values in (("two consumers", TWO), ("in turns", TURNS), ("B shared", SHARE_B))
    ),
    # -- arrivals
    _m("dropped arrive", "that a stage is read", Edit(MAIN, RELEASE, "")),
    _m("dropped arrive", "that a tile's last stage is read", Edit(MAIN, LAST_RELEASE, "")),
    _m(
        "dropped arrive",
        "that the only stage of a tile is read",
        Edit(MAIN, LAST_RELEASE, LAST_RELEASE.replace("count > 0", "count > 1")),
    ),
    _m(
        "dropped arrive",
        "at the peers",
        Edit(MAIN, "tells = lane < PEERS;", "tells = lane < 1;"),
        values=SHARE_B,
    ),
    _m("dropped arrive", "of the producer", Edit(MAIN, EXPECT, "")),
    _m(
        "dropped arrive",
        "for the other's turn to multiply",
        Edit(MAIN, "if (more) ptx::bar_arrive<2 * WARPGROUP>(MULTIPLY_TURN + 1 - consumer);", ";"),
        values=TURNS,
    ),
    _m(
        "dropped arrive",
        "for the other's turn to store",
        Edit(MAIN, "if (more) ptx::bar_arrive<2 * WARPGROUP>(STORE_TURN + 1 - consumer);", ""),
        values=STORED_TURNS,
    ),
    # -- fences
    _m(
        "dropped fence",
        "behind the barriers' making",
        Edit(MAIN, "ptx::fence_mbarrier_init_release_cluster();", ""),
        values=SHARE_B,
        equivalent="the cluster's barrier behind it releases and acquires: what was made before is seen",
    ),
    _m("dropped fence", "before the products", Edit(PRODUCT, FENCE_PRODUCT, "")),
    _m(
        "dropped fence",
        "before the products, in turns",
        Edit(PRODUCT, FENCE_PRODUCT, ""),
        values=TURNS,
    ),
    _m("dropped fence", "behind the zeros", Edit(MAIN, FENCE_PROXY, ""), values=SMALL),
    _m(
        "dropped fence",
        "behind the zeros, by most threads",
        Edit(MAIN, FENCE_PROXY, "if (threadIdx.x == 0) " + FENCE_PROXY),
        values=SMALL,
    ),
    _m("bulk store without its fence", "of 16-bit results", Edit(STORE, FENCE_PROXY, ""), values=STORED),
    _m(
        "bulk store without its fence",
        "of f32 results",
        Edit(STORE, FENCE_PROXY, ""),
        values=STORED | {"store_columns": 32},
        problem=NK | F32,
    ),
    _m("bulk store without its fence", "in turns", Edit(STORE, FENCE_PROXY, ""), values=STORED_TURNS),
    _m(
        "bulk store without its fence",
        "by all but the thread that stores",
        Edit(STORE, FENCE_PROXY, "if (leads) " + FENCE_PROXY),
        values=STORED,
    ),
    # -- phases
    _m(
        "wrong parity",
        "of a full stage",
        Edit(MAIN, WAIT_FULL, WAIT_FULL.replace("turn.parity", "turn.parity ^ 1")),
    ),
    _m("wrong parity", "of an empty stage", Edit(MAIN, WAIT_EMPTY, WAIT_EMPTY.replace(" ^ 1", ""))),
    _m("wrong parity", "the same in each turn round the ring", Edit(RING, "parity ^= 1;", "parity ^= 0;")),
    _m(
        "wrong parity",
        "the other's tile not counted",
        Edit(RING, "parity ^= turns & 1;", ""),
        values=TURNS,
    ),
    _m("phase restarted", "by both", Edit(MAIN, TILE, RESTART, 1), Edit(MAIN, TILE, RESTART, 0)),
    _m("phase restarted", "by the producer", Edit(MAIN, TILE, RESTART, 0)),
    _m("phase restarted", "by the consumers", Edit(MAIN, TILE, RESTART, 1), values=TWO),
    _m(
        "phase restarted",
        "only the parity, by both",
        Edit(MAIN, TILE, TILE + " turn.parity = 0;", 1),
        Edit(MAIN, TILE, TILE + " turn.parity = 0;", 0),
    ),
    # -- counts and bytes
    _m(
        "wrong count",
        "of arrivals at a full stage",
        Edit(
            MAIN,
            "ptx::mbarrier_init_shared_cta_b64(full + i * 8, 1);",
            "ptx::mbarrier_init_shared_cta_b64(full + i * 8, 2);",
        ),
    ),
    _m(
        "wrong count",
        "of readers: one warp each",
        Edit(MAIN, READERS, "READERS = SHARERS * PEERS;"),
        values=TWO,
    ),
    _m("wrong count", "of readers: one too many", Edit(MAIN, READERS, "READERS = 4 * SHARERS * PEERS + 1;")),
    _m(
        "wrong count",
        "of readers: of this block alone",
        Edit(MAIN, READERS, "READERS = 4 * SHARERS;"),
        values=SHARE_A,
    ),
    _m(
        "wrong count",
        "of threads that take turns",
        Edit(MAIN, "ptx::bar_sync<2 * WARPGROUP>(MULTIPLY_TURN", "ptx::bar_sync<WARPGROUP>(MULTIPLY_TURN"),
        values=TURNS,
    ),
    _m(
        "wrong bytes",
        "of A alone",
        Edit(MAIN, "PanelsA::LOADED_BYTES + PanelsB::LOADED_BYTES);", "PanelsA::LOADED_BYTES);"),
    ),
    _m("wrong bytes", "16 too few", Edit(MAIN, "PanelsB::LOADED_BYTES);", "PanelsB::LOADED_BYTES - 16);")),
    _m(
        "wrong bytes",
        "of its own slice",
        Edit(
            PANELS,
            "LOADED_BYTES = BOXES * BOX_ROWS * SLICES * SWIZZLE;",
            "LOADED_BYTES = BOXES * BOX_ROWS * SWIZZLE;",
        ),
        values=SHARE_B,
    ),
    _m(
        "wrong bytes",
        "of rows that are not loaded",
        Edit(MAIN, "PanelsA::LOADED_BYTES + PanelsB", "PanelsA::BYTES + PanelsB"),
        values=SMALL,
    ),
    _m("dropped commit", "of the products", Edit(PRODUCT, COMMIT_PRODUCT, "")),
    *(
        _m(
            "dropped commit",
            f"of panels that lie outside, {panels} of {columns} columns",
            Edit(STORE, "if (down < window.rows && across < window.columns)", IF_INSIDE),
            Edit(STORE, COMMIT_STORE, COMMIT_STORE + " }"),
            values=PANELS_2 | {"bn": columns, "store_panels": panels},
        )
        for columns, panels in ((64, 2), (128, 2), (128, 4))
    ),
    *(
        _m(
            "shared barrier",
            f"of consumers that store, {what}",
            Edit(MAIN, "OWN + consumer);", "OWN);"),
            values=STORED_TWO | values,
        )
        for what, values in (
            ("two", {}), ("two of 128 columns", {"bn": 128}),
            ("three", {"bm": 192, "consumers_m": 3, "registers": "32/160"}),
        )
    ),
    _m("dropped commit", "of stores", Edit(STORE, COMMIT_STORE, ""), values=STORED),
    _m("dropped commit", "of stores, two panels", Edit(STORE, COMMIT_STORE, ""), values=PANELS_2),
    _m("wrong group count", "of products", Edit(MAIN, WAIT_PRODUCT, WAIT_TWO)),
    _m(
        "wrong group count",
        "of panels",
        Edit(STORE, READ, READ.replace("PANELS - 1", "PANELS")),
        values=PANELS_2,
    ),
    _m(
        "wrong group count",
        "of panels before the other's turn",
        Edit(MAIN, "ptx::cp_async_bulk_wait_group_read<0>();", "ptx::cp_async_bulk_wait_group_read<1>();"),
        values=STORED_TURNS,
    ),
    # -- stages
    _m(
        "wrong stage index",
        "of A when multiplied",
        Edit(MAIN, "first_a + turn.stage *", "first_a + (turn.stage + 1) % STAGES *"),
    ),
    _m(
        "wrong stage index", "of B when loaded", Edit(MAIN, "base + B_AT + turn.stage *", "base + B_AT + 0 *")
    ),
    _m(
        "wrong stage index",
        "of the barrier of a load",
        Edit(MAIN, "barrier = full + turn.stage * 8;", "barrier = full + (turn.stage + 1) % STAGES * 8;"),
    ),
    _m("wrong stage index", "of what is released", Edit(MAIN, "before = turn.stage;", "before = 0;")),
    _m(
        "stage reused early",
        "released while it is multiplied",
        Edit(MAIN, RELEASE, "release(turn.stage);"),
        Edit(MAIN, LAST_RELEASE, ""),
    ),
    _m(
        "stage reused early",
        "released before the products of the one before are waited for",
        Edit(MAIN, WAIT_PRODUCT, RELEASE + " " + WAIT_PRODUCT),
        Edit(MAIN, RELEASE, "", 1),
    ),
    _m(
        "stage reused early",
        "the producer waits for another stage",
        Edit(MAIN, WAIT_EMPTY, WAIT_EMPTY.replace("turn.stage", "(turn.stage + 1) % STAGES")),
    ),
    _m(
        "stage reused early",
        "the last one released before its products are waited for",
        Edit(MAIN, "finish(sums);", LAST_RELEASE + " finish(sums);"),
        Edit(MAIN, LAST_RELEASE, "", 1),
    ),
    *(
        _m(
            "stage reused early",
            f"the last of several released before its products are waited for, {where}",
            Edit(MAIN, "finish(sums);", "if (count > 1) release(before); finish(sums);"),
            Edit(MAIN, LAST_RELEASE, "if (count == 1) release(before);"),
            values=values,
        )
        for where, values in (("one consumer", {}), ("in turns", TURNS))
    ),
    _m(
        "stage reused early",
        "the same panel each time",
        Edit(STORE, "turn = turn + 1 == PANELS ? 0 : turn + 1;", "turn = 0;"),
        values=PANELS_2,
    ),
    # -- descriptors, swizzles, masks
    _m(
        "wrong descriptor stride",
        "between eight rows",
        Edit(PANELS, "(8 * SWIZZLE / 16) << 32", "(4 * SWIZZLE / 16) << 32"),
    ),
    _m(
        "wrong descriptor stride",
        "between panels",
        Edit(PANELS, "(K_CONTIGUOUS ? 1 : PANEL / 16) << 16", "(K_CONTIGUOUS ? 1 : PANEL / 32) << 16"),
        values=ONE | {"bn": 128},
        problem=KM,
    ),
    _m(
        "wrong descriptor stride",
        "between steps of k",
        Edit(PANELS, "step * STEP % WIDTH * 2", "step * STEP % WIDTH"),
    ),
    _m(
        "wrong descriptor stride",
        "between steps of k in rows",
        Edit(PANELS, "step * STEP * SWIZZLE)", "step * 8 * SWIZZLE)"),
        problem=KM,
    ),
    _m(
        "wrong descriptor stride",
        "to the second 64 rows",
        Edit(PANELS, "x * SWIZZLE +", "x / 2 * SWIZZLE +"),
        values=TALL,
    ),
    _m(
        "wrong descriptor stride",
        "between stages",
        Edit(MAIN, "turn.stage * (PanelsB::BYTES / 16)", "turn.stage * (PanelsB::BYTES / 32)"),
    ),
    _m(
        "wrong swizzle",
        "of products: 64 for 128",
        Edit(PANELS, "SWIZZLE == 128 ? 1 :", "SWIZZLE == 128 ? 2 :"),
    ),
    _m(
        "wrong swizzle",
        "of products: 64 for 32",
        Edit(PANELS, "SWIZZLE == 64 ? 2 : 3", "SWIZZLE == 64 ? 2 : 2"),
        values=ONE | {"swizzle_a": 32},
    ),
    _m(
        "wrong swizzle",
        "of panels, none",
        Edit(STORE, "ROW_BYTES == 128 ? 0x70", "ROW_BYTES == 128 ? 0"),
        values=STORED,
    ),
    _m(
        "wrong swizzle",
        "of panels, of another row",
        Edit(STORE, "row * ROW_BYTES >> 3", "row * ROW_BYTES >> 4"),
        values=STORED,
    ),
    _m(
        "wrong multicast mask",
        "of A: of the first row",
        Edit(MAIN, "return mask << row;", "return mask;"),
        values=BOTH,
    ),
    _m(
        "wrong multicast mask",
        "of A: this block alone",
        Edit(MAIN, "mask |= 1u << (i * CLUSTER_M);", "mask = 1u << (column * CLUSTER_M);"),
        values=SHARE_A,
    ),
    _m(
        "wrong multicast mask",
        "of B: one block less",
        Edit(MAIN, MASK_B, MASK_B.replace("CLUSTER_M) - 1", "(CLUSTER_M - 1)) - 1")),
        values=SHARE_B,
    ),
    _m(
        "wrong multicast mask",
        "of B: a block that is not there",
        Edit(MAIN, MASK_B, MASK_B.replace("CLUSTER_M) - 1", "(CLUSTER_M + 1)) - 1")),
        values=SHARE_B,
    ),
    _m(
        "wrong multicast mask",
        "of B: of the first column",
        Edit(MAIN, MASK_B, "return (1u << CLUSTER_M) - 1;"),
        values=BOTH,
    ),
    # -- registers and the end
    _m("missing setmaxnreg", "of the producer", Edit(MAIN, DEC, ""), values=TURNS),
    _m("missing setmaxnreg", "of three warps of the producer", Edit(MAIN, DEC, "if (warp == 0) " + DEC)),
    _m(
        "missing setmaxnreg",
        "of the producer, two consumers",
        Edit(MAIN, DEC, ""),
        values=TWO | {"registers": "24/240"},
    ),
    _m(
        "missing setmaxnreg",
        "more than the producer left",
        Edit(MAIN, INC, INC.replace("REGISTERS>", "REGISTERS + 8>")),
        values=TWO | {"registers": "24/240"},
    ),
    _m(
        "peer exits early",
        "B shared",
        Edit(MAIN, ARRIVE_CLUSTER, "", 1),
        Edit(MAIN, WAIT_CLUSTER, "", 1),
        values=SHARE_B,
    ),
    _m(
        "peer exits early",
        "A shared",
        Edit(MAIN, ARRIVE_CLUSTER, "", 1),
        Edit(MAIN, WAIT_CLUSTER, "", 1),
        values=SHARE_A,
    ),
    _m("peer exits early", "without the wait", Edit(MAIN, WAIT_CLUSTER, "", 1), values=BOTH),
    # -- numbers
    _m(
        "off-by-one k",
        "coordinates one tile on",
        Edit(MAIN, "(one.part.first + i) * BK", "(one.part.first + i + 1) * BK"),
    ),
    _m("off-by-one k", "the last, short tile left out", Edit(MAIN, "ceil_div(k, BK) : 0", "int(k / BK) : 0")),
    _m(
        "off-by-one k",
        "one tile less multiplied",
        Edit(MAIN, "const int count = one.part.count;", "const int count = most(one.part.count - 1, 0);"),
    ),
    _m("missing tail mask", "rows", Edit(STORE, "if (r < w.rows) {", "{")),
    _m(
        "missing tail mask",
        "columns",
        Edit(STORE, "if (c < w.columns) {", "{"),
        equivalent="what is left of the row is 0 or less there, and no element of a vector is in it",
    ),
    _m("missing tail mask", "columns of a part", Edit(STORE, "w.columns - across};", "w.columns};")),
    _m(
        "missing tail mask",
        "rows that are not loaded",
        Edit(STORE, "if (down < window.rows && across < window.columns)", ""),
        values=SMALL | TMA,
        equivalent="rows of a low tile are one box of 16: what lies below them is not part of it",
    ),
    _m(
        "missing tail mask",
        "rows of a low tile",
        Edit(MAIN, "least(extent_m - one.row, BM) - down", "extent_m - one.row - down"),
        values=SMALL,
    ),
    _m(
        "swapped operands",
        "descriptors",
        Edit(
            PRODUCT,
            "sums[i], a + PanelsA::offset(i * 64, step), b + PanelsB::offset(0, step), 1);",
            "sums[i], b + PanelsA::offset(i * 64, step), a + PanelsB::offset(0, step), 1);",
        ),
    ),
    _m(
        "swapped operands", "coordinates of A", Edit(MAIN, "map_a, one.row, from_k", "map_a, from_k, one.row")
    ),
    _m(
        "swapped operands",
        "row and column of a store",
        Edit(
            STORE,
            "map, window.column + across, window.row + down",
            "map, window.row + down, window.column + across",
        ),
        values=STORED,
    ),
    _m(
        "wrong fragment",
        "rows of a warp",
        Edit(STORE, "% WARPGROUP / 32 * 16, across", "% WARPGROUP / 32 * 8, across"),
    ),
    _m(
        "wrong fragment",
        "columns of a part",
        Edit(
            STORE,
            "sums[part / ACROSS][part % ACROSS * WIDTH + j][e]",
            "sums[part / ACROSS][part % ACROSS * WIDTH + (j ^ 1)][e]",
        ),
    ),
    _m(
        "wrong fragment",
        "matrices of a panel",
        Edit(STORE, "row = mine + lane % 16,", "row = mine + lane % 8 + lane / 16 * 8,"),
        values=STORED,
    ),
    _m(
        "wrong predicate",
        "a store by two threads",
        Edit(STORE, "leads = threadIdx.x % WARPGROUP == 0;", "leads = threadIdx.x % WARPGROUP < 2;"),
        values=STORED,
    ),
    _m(
        "wrong predicate",
        "a load by the whole warp",
        Edit(MAIN, "issues = ptx::elect_sync();", "issues = true;"),
    ),
    _m("wrong predicate", "a release by every lane", Edit(MAIN, "tells = lane < PEERS;", "tells = true;")),
    # -- what large problems alone reach
    *in_shared_sources("gemm_sm90", ONE, NK),
    _m(
        "wrong tile",
        "columns of clusters behind the second",
        Edit(MAIN, "one.column = one.tile.column * BN;", "one.column = least(one.tile.column, 1) * BN;"),
    ),
    _m(
        "wrong tile",
        "rows of clusters counted without their blocks",
        Edit(MAIN, "one.tile.row * CLUSTER_M + place.row", "one.tile.row + place.row"),
        values=SHARE_B,
    ),
    _m(
        "wrong tile",
        "tiles of a block behind the third",
        Edit(MAIN, "const Tiles::One one = tiles.at(at, place);", LATE_TILE, 1),
    ),
    _m(
        "wrong tile",
        "counters shared by every fourth",
        Edit(MAIN, "counters + number,", "counters + number % 4,"),
        values=LAST,
    ),
    _m(
        "wrong tile",
        "parts of k shared by every fourth",
        Edit(MAIN, "partials_at + number * splits", "partials_at + number % 4 * splits"),
        values=LAST,
    ),
    _m(
        "wrong tile",
        "parts of k of clusters without their blocks",
        Edit(MAIN, "static_cast<long long>(tiles.rows) * CLUSTER_M;", "tiles.rows;"),
        values=LAST | {"cluster_m": 2},
        problem=NK | BATCH,
    ),
    _m(
        "wrong tile",
        "batch entries of A behind the second",
        Edit(MAIN, "from_k, one.tile.batch, barrier", "from_k, least(one.tile.batch, 1), barrier"),
        problem=NK | BATCH,
    ),
    _m(
        "wrong tile",
        "batch entries of a store behind the second",
        Edit(STORE, "window.row + down, entry, panel", "window.row + down, entry > 1 ? 1 : entry, panel"),
        values=STORED,
        problem=NK | BATCH,
    ),
    _m(
        "wrong tile",
        "the second turn of Hilbert's curve",
        Edit(RASTER, "y = turned;", ""),
        values=ONE | {"raster": "hilbert", "group": 4},
    ),
    _m(
        "wrong tile",
        "squares of Hilbert's curve in a lower band",
        Edit(RASTER, "in_band / (height * side) * side;", "in_band / (side * side) * side;"),
        values=ONE | {"raster": "hilbert", "group": 2},
    ),
    _m(
        "wrong pitch",
        "out's rows by the columns of the product",
        Edit(
            STORE,
            "(o, y, w.column + c, w.row + r, w.rows - r);",
            "(o, y, w.row + r, w.column + c, w.columns - c);",
        ),
        values=ONE | {"swap_ab": True, "vector": 1},
    ),
)
