"""What follows from a schedule of gemm_sm90: roles, shared memory, boxes, registers? The arithmetic of the
template."""

from __future__ import annotations

from dataclasses import dataclass

from search_space.plan.gemm_cuda_shape import Shape, Side
from search_space.schedule import Schedule

WARPGROUP = 128
BLOCK_ROWS = 64
"""Rows of a wgmma."""
STEP = 16
"""Of k in one wgmma of 16-bit operands."""
ALIGN = 1024
"""Of the ring in shared memory: where the pattern of a 128-byte swizzle repeats. The kernel aligns it."""
REGISTERS: dict[str, tuple[int, int]] = {
    "none": (0, 0),
    "24/240": (24, 240),
    "24/256": (24, 256),
    "40/232": (40, 232),
    "40/248": (40, 248),
    "56/152": (56, 152),
    "56/224": (56, 224),
    "56/256": (56, 256),
    "32/160": (32, 160),
    "24/160": (24, 160),
}
"""Registers of a thread of the producer and of the consumers after setmaxnreg."""
DIRECT, STAGED, TMA = "direct", "staged", "tma"
HINTS = {"none": 0, "first": 1, "last": 2}
HEAVY = (2, 3, 4)
"""Activations whose code is long: gelu, gelu_tanh, silu."""


@dataclass(frozen=True)
class Panel:
    """How an operand's tile lies in shared memory (kernels/cuda/include/tile/panels.cuh)."""

    k_contiguous: bool
    extent: int
    """Of m (or n) in shared memory."""
    loaded: int
    """Of them come from memory."""
    depth: int
    swizzle: int
    slices: int
    """Blocks of a cluster that load a part each."""

    @property
    def width(self) -> int:
        """Elements of a panel's row."""
        return self.swizzle // 2

    @property
    def along(self) -> int:
        """Elements that panels share out: of k, or of m (or n)."""
        return self.depth if self.k_contiguous else self.extent

    @property
    def across(self) -> int:
        """Rows of a panel that are loaded, which the slices share."""
        return self.loaded if self.k_contiguous else self.depth

    @property
    def bytes(self) -> int:
        """Of a stage."""
        return self.extent * self.depth * 2

    @property
    def box(self) -> tuple[int, int]:
        """Elements of a row, and rows, that one copy brings."""
        return self.width, self.across // self.slices


@dataclass(frozen=True)
class Tile:
    """Sizes in elements, bytes and threads. Rows and columns are those of the product: with `swap_ab` of the
    transposed one."""

    bm: int
    bn: int
    bk: int
    stages: int
    pingpong: bool
    consumers_m: int
    consumers_n: int
    persistent: bool
    producer_registers: int
    """After setmaxnreg; 0: none is executed."""
    consumer_registers: int
    cluster_m: int
    cluster_n: int
    swizzle_a: int
    swizzle_b: int
    swap: bool
    store: str
    vector: int
    store_columns: int
    store_panels: int
    promotion: int
    hint_a: int
    hint_b: int

    @classmethod
    def of(cls, s: Schedule) -> Tile:
        """Of a schedule of this family."""
        producer, consumer = REGISTERS[s.text("registers")]
        return cls(
            bm=s.integer("bm"),
            bn=s.integer("bn"),
            bk=s.integer("bk"),
            stages=s.integer("stages"),
            pingpong=s.text("hand_off") == "pingpong",
            consumers_m=s.integer("consumers_m"),
            consumers_n=s.integer("consumers_n"),
            persistent=s.flag("persistent"),
            producer_registers=producer,
            consumer_registers=consumer,
            cluster_m=s.integer("cluster_m"),
            cluster_n=s.integer("cluster_n"),
            swizzle_a=s.integer("swizzle_a"),
            swizzle_b=s.integer("swizzle_b"),
            swap=s.flag("swap_ab"),
            store=s.text("store"),
            vector=s.integer("vector"),
            store_columns=s.integer("store_columns"),
            store_panels=s.integer("store_panels"),
            promotion=s.integer("promotion"),
            hint_a=HINTS[s.text("hint_a")],
            hint_b=HINTS[s.text("hint_b")],
        )

    # -- roles ------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.consumers_m * self.consumers_n

    @property
    def sharers(self) -> int:
        """Consumers that share a tile."""
        return 1 if self.pingpong else self.consumers

    @property
    def threads(self) -> int:
        """Threads of a block: a producer warpgroup and the consumers."""
        return WARPGROUP * (1 + self.consumers)

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def rows(self) -> int:
        """Rows of a tile in shared memory: a wgmma's 64 at least."""
        return max(self.bm, BLOCK_ROWS)

    @property
    def wm(self) -> int:
        """Rows of a consumer's part of the tile."""
        return self.rows if self.pingpong else self.rows // self.consumers_m

    @property
    def wn(self) -> int:
        """Columns of it, and n of the wgmma in use."""
        return self.bn if self.pingpong else self.bn // self.consumers_n

    # -- operands ---------------------------------------------------------------------------------------

    def sides(self, shape: Shape) -> tuple[Side, Side]:
        """The product's left and right operand."""
        return (shape.b, shape.a) if self.swap else (shape.a, shape.b)

    def extents(self, shape: Shape) -> tuple[int, int]:
        """The product's rows and columns."""
        return (shape.n, shape.m) if self.swap else (shape.m, shape.n)

    def panels(self, shape: Shape) -> tuple[Panel, Panel]:
        """Of the left and the right operand."""
        left, right = self.sides(shape)
        return (
            Panel(left.k_contiguous, self.rows, self.bm, self.bk, self.swizzle_a, self.cluster_n),
            Panel(right.k_contiguous, self.bn, self.bn, self.bk, self.swizzle_b, self.cluster_m),
        )

    # -- shared memory ----------------------------------------------------------------------------------

    @property
    def stage_bytes(self) -> tuple[int, int]:
        """Of A and of B."""
        return self.rows * self.bk * 2, self.bn * self.bk * 2

    @property
    def out_at(self) -> int:
        """Where what is on its way out begins, behind the ring."""
        return -(-self.stages * sum(self.stage_bytes) // ALIGN) * ALIGN

    def out_bytes(self, shape: Shape) -> int:
        """Of a warpgroup: its panels, or its four warps' pieces of sums."""
        if self.store == TMA:
            return self.store_panels * BLOCK_ROWS * self.store_columns * shape.out_size
        if self.store == STAGED:
            rows, columns = (self.store_columns, 16) if self.swap else (16, self.store_columns)
            return 4 * rows * (columns if columns % 16 else columns + 8) * 4
        return 0

    def smem_bytes(self, shape: Shape) -> int:
        """Dynamic shared memory of a block: slack to align the ring, what is on its way out, two barriers a
        stage, and two words (padded to 16 bytes)."""
        return self.out_at + self.sharers * self.out_bytes(shape) + 16 * self.stages + 16 + ALIGN

    def store_part(self, shape: Shape) -> int:
        """Columns that are finished at once on their way to a panel: fewer where the code of one is long."""
        return min(self.store_columns, 16 if shape.activation in HEAVY else 32)

    # -- registers --------------------------------------------------------------------------------------

    @property
    def entry_registers(self) -> int:
        """Of a thread when the kernel begins: a quarter of an SM's registers for the warps of a quarter."""
        return min(256, 16384 // (32 * -(-self.threads // WARPGROUP)) // 8 * 8)

    @property
    def sums(self) -> int:
        """Registers of a consumer's thread that hold sums."""
        return self.wm * self.wn // WARPGROUP

    @property
    def consumers_take(self) -> bool:
        """Whether consumers go up to their registers, or down."""
        return self.consumer_registers >= self.entry_registers

    def consumer_room(self) -> int:
        """Registers that a thread of a consumer may have; ptxas gives no more than 255."""
        return min(255, self.consumer_registers or self.entry_registers)
