"""What follows from a schedule of gemm_sm80: threads, shared memory, registers? The arithmetic of the
template."""

from __future__ import annotations

from dataclasses import dataclass

from search_space.plan.gemm_cuda_shape import FP8, Shape, Side
from search_space.schedule import Schedule

STEP_BYTES = 32
"""Of k in one mma.sync of every type: m16n8k16 of 16 bits, k32 of 8 bits, k8 of tf32."""
COPIES = {"cp_async_16": 16, "cp_async_8": 8, "cp_async_4": 4, "plain": 0}
"""Bytes of a copy; 0: through registers, element by element."""
_REGISTERS_BESIDE = 40
"""Addresses, counters and predicates of the main loop; from compiles."""
_REGISTERS_AHEAD = 8
"""Addresses of the next fragments besides; from compiles."""


@dataclass(frozen=True)
class Tile:
    """Sizes in elements, bytes and threads."""

    bm: int
    bn: int
    bk: int
    warps_m: int
    warps_n: int
    stages: int
    copy_a: int
    """Bytes of a cp.async; 0: plain."""
    copy_b: int
    swizzle: bool
    staged: bool
    vector: int
    lookahead: bool
    resident: int

    @classmethod
    def of(cls, s: Schedule) -> Tile:
        """Of a schedule of this family."""
        return cls(
            bm=s.integer("bm"),
            bn=s.integer("bn"),
            bk=s.integer("bk"),
            warps_m=s.integer("warps_m"),
            warps_n=s.integer("warps_n"),
            stages=s.integer("stages"),
            copy_a=COPIES[s.text("copy_a")],
            copy_b=COPIES[s.text("copy_b")],
            swizzle=s.text("banks") == "swizzle",
            staged=s.text("store") == "staged",
            vector=s.integer("vector"),
            lookahead=s.flag("lookahead"),
            resident=s.integer("resident"),
        )

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

    def row_chunks(self, side: Side, extent: int) -> int:
        """16-byte chunks of a row of an operand's tile."""
        return (self.bk if side.k_contiguous else extent) * side.size // 16

    def rows(self, side: Side, extent: int) -> tuple[int, int]:
        """Rows of an operand's tile and bytes of each, without padding."""
        return extent if side.k_contiguous else self.bk, self.row_chunks(side, extent) * 16

    def span(self, side: Side, extent: int) -> int:
        """Chunks of a row among which the swizzle exchanges."""
        chunks = self.row_chunks(side, extent)
        return min(8, chunks & -chunks)

    def operand_bytes(self, side: Side, extent: int) -> int:
        """Shared memory of one stage of an operand (kernels/cuda/include/tile/layout.cuh)."""
        rows, row = self.rows(side, extent)
        words = not side.k_contiguous and side.size == 4
        pad = 0 if self.swizzle else 32 if words else 16
        return rows * (row + pad)

    def stage_bytes(self, shape: Shape) -> tuple[int, int]:
        """Of A and of B."""
        return self.operand_bytes(shape.a, self.bm), self.operand_bytes(shape.b, self.bn)

    def piece_bytes(self) -> int:
        """A warp's 16 rows of sums on their way out (kernels/cuda/include/epilogue/store.cuh)."""
        pitch = self.wn if self.wn % 16 else self.wn + 8
        return 16 * pitch * 4 if self.staged else 0

    def smem_bytes(self, shape: Shape) -> int:
        """Dynamic shared memory of a block: the ring, whose bytes serve the epilogue afterwards."""
        return max(self.stages * sum(self.stage_bytes(shape)), self.warps * self.piece_bytes())

    def copies(self, side: Side, extent: int, width: int) -> int:
        """Copies of each thread for one stage of an operand (kernels/cuda/include/tile/copy.cuh)."""
        rows, row = self.rows(side, extent)
        per_row = row // (width or 16)
        across = min(per_row, self.threads)
        return -(-per_row // across) * -(-rows // (self.threads // across))

    def registers(self, shape: Shape, arch: str) -> int:
        """Registers that a thread needs at least: sums, fragments, plain copies under way, and the rest."""
        sums = self.wm * self.wn // 32
        fragments = self.wm // 16 * 4 + self.wn // 8 * 2
        if arch == "sm_90a" and shape.a.dtype in FP8:
            # Its mma.sync has no fp8: ptxas converts to f16, twice the room, for all steps of a tile at once.
            fragments *= 1 + 2 * (self.bk // STEP_BYTES)
        held = sum(
            4 * self.copies(side, extent, 0)
            for side, extent, width in ((shape.a, self.bm, self.copy_a), (shape.b, self.bn, self.copy_b))
            if width == 0
        )
        needed = sums + fragments + held + self._addresses(shape) + _REGISTERS_BESIDE
        if self.lookahead:
            needed += fragments + _REGISTERS_AHEAD
        if not self.staged and shape.out == "s32" and 2 in (shape.alpha, shape.beta):
            needed = max(needed, 3 * sums + _REGISTERS_BESIDE)  # every sum at once as f64 as well
        return needed

    def _addresses(self, shape: Shape) -> int:
        """Addresses of fragments that differ by more than a constant: where rows lie along m (or n) and a
        warp's part is no whole span of the swizzle, each fragment has its own, in each step."""
        found = 0
        for side, extent, mine in ((shape.a, self.bm, self.wm), (shape.b, self.bn, self.wn)):
            if self.swizzle and not side.k_contiguous and mine * side.size // 16 % self.span(side, extent):
                found += mine // 16 * (self.bk * side.size // STEP_BYTES)
        return found
