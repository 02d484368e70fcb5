"""Which Hopper kernels from outside are held against the emulator's asynchronous units?

Triton's TMA matmul for sm_90a, plain and with warp roles, and a warp-specialised GEMM of CUTLASS 3: TMA both
ways, mbarriers, WGMMA, proxies, setmaxnreg, named barriers; CUTLASS's with clusters and multicast, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooftile.plan import (
    TENSOR_MAP_BYTES,
    Arg,
    ConcreteLaunch,
    Encode,
    Launch,
    LaunchPlan,
    TensorMap,
    ceil_div,
    mul,
)

from bench.emulation.witnesses import Pack, RawLaunch, Size, Witness, WitnessMissingError


def _triton_tma(bm: int, bn: int, bk: int, stages: int, warps: int, *, roles: bool, b_nk: bool) -> Witness:
    # What Triton 3.5 to 3.9 add to the warps of one consumer with roles, measured: two warpgroups.
    threads = warps * 32 + (256 if roles else 0)
    boxes = ((bm, 64), (bn, 64) if b_nk else (bk, 64), (bm, 64))
    # Both consumers stage a result of their own.
    smem = stages * (bm * bk + bk * bn) * 2 + bm * bn * 2 * (2 if roles else 1) + 1024

    def build() -> str:
        try:
            from bench.peers import triton_tma_matmul as peer
        except ImportError:
            raise WitnessMissingError("the wheel triton is not installed (extra `peers`)") from None
        made = peer.compile_matmul(90, bm, bn, bk, stages, warps, roles=roles, b_nk=b_nk)
        if (made.threads, made.boxes) != (threads, boxes) or made.shared_bytes > smem:
            raise WitnessMissingError(
                f"this Triton wants another launch than the witness has: {made.threads} threads, boxes"
                f" {made.boxes}, {made.shared_bytes} bytes of shared memory"
            )
        return made.ptx

    sizes = ("m", "n", "k")
    rows_of = {"a": "m", "b": "n" if b_nk else "k", "out": "m"}
    columns_of = {"a": "k", "b": "k" if b_nk else "n", "out": "n"}
    args: list[Arg] = []
    for name, (rows, columns) in zip(rows_of, boxes, strict=True):
        dims = (columns_of[name], rows_of[name])
        tensor = TensorMap(
            name, "bf16", dims, (mul(dims[0], 2),), (columns, rows), swizzle=128, l2_promotion=128
        )
        args.append(Arg.tensor_map(f"map_{name}", tensor))
        # Triton passes shape and strides beside each map.
        args += [Arg(f"{name}_shape{i}", "u32", value=x) for i, x in enumerate(reversed(dims))]
        args += [Arg.i64(f"{name}_stride0", dims[0]), Arg.i64(f"{name}_stride1", 1)]
    args += [*(Arg(x, "i32", value=x) for x in sizes), Arg.f32("alpha")]
    # Two pointers to scratch memory that Triton adds to every kernel; these have none.
    args += [Arg.ptr("scratch", "lse"), Arg.ptr("profile", "lse")]
    grid = (mul(ceil_div("m", bm), ceil_div("n", bn)), 1, 1)
    launch = Launch("matmul_tma", tuple(args), grid=grid, block=(threads, 1, 1), smem=smem)
    with_roles = ("setmaxnreg.inc", "setmaxnreg.dec", "mbarrier.arrive.shared::cta") if roles else ()
    return Witness(
        name=f"Triton TMA matmul {bm}x{bn}x{bk}, {stages} stages, {warps} warps"
        f"{' and roles' if roles else ''}{'' if b_nk else ', B k x n'}",
        build=build,
        plan=LaunchPlan("witness", "sm_90a", "cuda", ("matmul_tma",), sizes, (launch,)),
        opcodes=(*_HOPPER, *with_roles),
        b_nk=b_nk,
        # Rows of whole 16 bytes: what a tensor map wants.
        sizes=((2 * bm, bn, (stages + 2) * bk), (bm + 24, bn + 40, 3 * bk + 24), (8, 8, 8)),
        waits=_WAITS,
        shared_align=_SHARED_ALIGN,
    )  # fmt: skip


_HOPPER = (
    "wgmma.mma_async.sync.aligned.m64n", "wgmma.fence.sync.aligned", "wgmma.commit_group", "wgmma.wait_group",
    "cp.async.bulk.tensor.", ".mbarrier::complete_tx::bytes", ".bulk_group", "mbarrier.try_wait.parity",
    "mbarrier.arrive.expect_tx", "fence.proxy.async", "stmatrix.sync.aligned",
)  # fmt: skip
# Both rely on it for the 128-byte swizzle and declare 16; devices do place it so.
_SHARED_ALIGN = 1024
_WAITS = ("mbarrier.try_wait", "wgmma.wait_group", "fence.proxy.async")


class _Cutlass3:
    """A kernel of CUTLASS 3, compiled once in this process."""

    def __init__(self, bm: int, bn: int, bk: int, stages: int, cluster_m: int, pingpong: bool) -> None:
        self._given = (bm, bn, bk, stages)
        self._pingpong = pingpong
        self._cluster = (cluster_m, 1, 1)
        self._built: Any = None

    def build(self) -> str:
        """The PTX; two minutes."""
        from bench.peers import cutlass_sm90 as peer

        if self._built is None:
            try:
                self._built = peer.build_witness(
                    *self._given, cluster_m=self._cluster[0], pingpong=self._pingpong
                )
            except peer.CutlassMissingError as error:
                raise WitnessMissingError(str(error)) from None
        return str(self._built.ptx)

    def plan(self, size: Size, sm_count: int) -> LaunchPlan:
        self.build()
        found = self._built.params(*size, {"a": 1 << 20, "b": 2 << 20, "out": 3 << 20}, 1.0, sm_count)
        launch = Launch(
            "witness", (), grid=found.grid, block=(found.threads, 1, 1), cluster=self._cluster,
            smem=found.shared_bytes,
        )  # fmt: skip
        return LaunchPlan("witness", "sm_90a", "cuda", ("witness",), ("m", "n", "k"), (launch,))

    def pack(self, size: Size, sm_count: int, alpha: float) -> Pack:
        def packed(step: ConcreteLaunch, pointers: Mapping[str, int], encode: Encode) -> bytes:
            found = self._built.params(*size, pointers, alpha, sm_count)
            data = bytearray(found.data)
            for at, tensor, address in found.maps:
                data[at : at + TENSOR_MAP_BYTES] = encode(tensor, address)
            return bytes(data)

        return packed


def _cutlass3(
    bm: int, bn: int, bk: int, stages: int, *, cluster_m: int = 1, pingpong: bool = False
) -> Witness:
    kernel = _Cutlass3(bm, bn, bk, stages, cluster_m, pingpong)
    of_cluster = (".multicast::cluster", "mapa.shared::cluster", "barrier.cluster.") if cluster_m > 1 else ()
    return Witness(
        name=f"CUTLASS 3 GEMM {bm}x{bn}x{bk}, {stages} stages, {'ping-pong' if pingpong else 'cooperative'}"
        f"{f', cluster {cluster_m}x1' if cluster_m > 1 else ''}",
        build=kernel.build,
        plan=RawLaunch(kernel.plan, kernel.pack),
        opcodes=(
            *_HOPPER, *of_cluster, "setmaxnreg.inc", "setmaxnreg.dec", "mbarrier.arrive.shared::cluster",
            "prefetch.tensormap", "fence.mbarrier_init", "cp.async.bulk.wait_group.read",
        ),
        b_nk=True,
        # The second: six tiles, for four blocks or two clusters.
        sizes=((2 * bm, bn, (stages + 2) * bk), (bm + 24, 2 * bn + 40, 2 * bk + 24), (8, 8, 8)),
        waits=_WAITS,
        shared_align=_SHARED_ALIGN,
    )  # fmt: skip


def hopper_witnesses() -> Sequence[Witness]:
    """Those that the tests run, too; nothing is compiled yet."""
    return (
        _triton_tma(128, 128, 64, 3, 8, roles=False, b_nk=True),
        _triton_tma(64, 128, 64, 4, 4, roles=False, b_nk=False),
        _triton_tma(64, 128, 64, 4, 4, roles=True, b_nk=True),
    )


def slow_witnesses() -> Sequence[Witness]:
    """Those whose compile takes minutes: for the bench."""
    return (_cutlass3(128, 128, 64, 4), _cutlass3(128, 128, 64, 4, cluster_m=2))
