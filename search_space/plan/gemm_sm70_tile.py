"""What follows from a schedule of gemm_sm70: threads, shared memory, registers? The arithmetic of the
template."""

from __future__ import annotations

from dataclasses import dataclass

from search_space.plan.gemm_cuda_shape import Shape, Side
from search_space.schedule import Schedule

STEP = 16
"""Of k in one product of every WMMA shape."""
FRAGMENTS = {"m16n16k16": (16, 16), "m32n8k16": (32, 8), "m8n32k16": (8, 32)}
_REGISTERS_BESIDE = 44
"""Addresses, counters and predicates of the main loop; from compiles."""


@dataclass(frozen=True)
class Tile:
    """Sizes in elements, bytes and threads."""

    bm: int
    bn: int
    bk: int
    fragment: str
    warps_m: int
    warps_n: int
    stages: int
    copy_a: int
    """Bytes of a global read."""
    copy_b: int
    pad: int
    """Bytes between rows in shared memory."""
    vector: int
    resident: int

    @classmethod
    def of(cls, s: Schedule) -> Tile:
        """Of a schedule of this family."""
        return cls(
            bm=s.integer("bm"),
            bn=s.integer("bn"),
            bk=s.integer("bk"),
            fragment=s.text("fragment"),
            warps_m=s.integer("warps_m"),
            warps_n=s.integer("warps_n"),
            stages=s.integer("stages"),
            copy_a=s.integer("copy_a"),
            copy_b=s.integer("copy_b"),
            pad=2 * s.integer("pad"),
            vector=s.integer("vector"),
            resident=s.integer("resident"),
        )

    @property
    def fm(self) -> int:
        """Rows of a fragment."""
        return FRAGMENTS[self.fragment][0]

    @property
    def fn(self) -> int:
        """Columns of a fragment."""
        return FRAGMENTS[self.fragment][1]

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.warps_m * self.warps_n

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def wm(self) -> int:
        """Rows of a warp's tile."""
        return self.bm // self.warps_m

    @property
    def wn(self) -> int:
        """Columns of a warp's tile."""
        return self.bn // self.warps_n

    def rows(self, side: Side, extent: int) -> tuple[int, int]:
        """Rows of an operand's tile and bytes of each, without padding."""
        return (extent, self.bk * 2) if side.k_contiguous else (self.bk, extent * 2)

    def operand_bytes(self, side: Side, extent: int) -> int:
        """Shared memory of one stage of an operand (kernels/cuda/include/tile/wmma.cuh)."""
        rows, row = self.rows(side, extent)
        return rows * (row + self.pad)

    def stage_bytes(self, shape: Shape) -> tuple[int, int]:
        """Of A and of B."""
        return self.operand_bytes(shape.a, self.bm), self.operand_bytes(shape.b, self.bn)

    def piece_bytes(self) -> int:
        """A warp's rows of one fragment on their way out (kernels/cuda/include/epilogue/store.cuh)."""
        return self.fm * (self.wn if self.wn % 16 else self.wn + 8) * 4

    def smem_bytes(self, shape: Shape) -> int:
        """Dynamic shared memory of a block: the stages, whose bytes serve the epilogue afterwards."""
        return max(self.stages * sum(self.stage_bytes(shape)), self.warps * self.piece_bytes())

    def copies(self, side: Side, extent: int) -> int:
        """16-byte pieces that each thread holds of one tile (kernels/cuda/include/tile/copy.cuh)."""
        rows, row = self.rows(side, extent)
        across = min(row // 16, self.threads)
        return -(-(row // 16) // across) * -(-rows // (self.threads // across))

    def registers(self, shape: Shape) -> int:
        """Registers that a thread needs at least: sums, fragments, the next tile's pieces, and the rest."""
        rows, columns = self.wm // self.fm, self.wn // self.fn
        held = 4 * (self.copies(shape.a, self.bm) + self.copies(shape.b, self.bn))
        return 8 * rows * columns + 8 * rows + 8 + held + _REGISTERS_BESIDE
