"""What does Triton's compiler take for its TMA matmul (sm_90a) of the same tiles, stages and warps?

The matmul with descriptors made on the host: they come as tensor maps by value. B is n x k, as Triton's own
examples have it, or k x n. With roles the loop over k is `warp_specialize`d: TMA in a warpgroup of its own,
registers moved by setmaxnreg. Same protocol as triton_matmul: warm, without the import, no cache.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from bench.peers.compiled import Compiled, cpu_s
from bench.peers.triton_matmul import VERSION

# isort: split
# Behind triton_matmul, which turns the cache off before Triton is imported.
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

__all__ = ["VERSION", "CompiledTma", "TritonFailure", "compile_matmul"]

GROUP = 8
_SWIZZLE_128 = 3
_BF16_ON_DEVICE = 10


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def matmul_tma(  # type: ignore[no-untyped-def]
    a_map, b_map, out_map, m, n, k, alpha,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,  # noqa: N803
    B_NK: tl.constexpr, ROLES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(m, BM)
    tiles_n = tl.cdiv(n, BN)
    band = GROUP * tiles_n
    first = pid // band * GROUP
    height = min(tiles_m - first, GROUP)
    row = (first + pid % band % height) * BM
    column = pid % band // height * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in tl.range(0, tl.cdiv(k, BK), warp_specialize=ROLES):
        a = a_map.load([row, i * BK])
        if B_NK:
            acc = tl.dot(a, b_map.load([column, i * BK]).T, acc)
        else:
            acc = tl.dot(a, b_map.load([i * BK, column]), acc)
    out_map.store([row, column], (acc * alpha).to(tl.bfloat16))


class TritonFailure(Exception):
    """Triton cannot compile this schedule; one sentence. Its compiler fails for some tiles with roles."""


@dataclass(frozen=True)
class CompiledTma(Compiled):
    """One compile, and what a launch needs: threads of a block, dynamic shared memory, and the box of each of
    the three tensor maps (rows, columns; bf16, swizzled by 128 bytes)."""

    threads: int
    shared_bytes: int
    boxes: tuple[tuple[int, int], ...]


def compile_matmul(
    capability: int, bm: int, bn: int, bk: int, stages: int, warps: int, *, roles: bool = False,
    b_nk: bool = True,
) -> CompiledTma:  # fmt: skip
    """To PTX and cubin. `capability` as in GPUTarget: 90 (which Triton takes for sm_90a). With roles, `warps`
    are those of one consumer; more come beside them. TritonFailure where Triton's own passes fail."""
    b_block = (bn, bk) if b_nk else (bk, bn)
    blocks = {"a_map": (bm, bk), "b_map": b_block, "out_map": (bm, bn)}
    source = ASTSource(
        fn=matmul_tma,
        signature={name: f"tensordesc<bf16[{rows}, {columns}]>" for name, (rows, columns) in blocks.items()}
        | dict.fromkeys("mnk", "i32")
        | {"alpha": "fp32"}
        | dict.fromkeys(("BM", "BN", "BK", "GROUP", "B_NK", "ROLES"), "constexpr"),
        constexprs={"BM": bm, "BN": bn, "BK": bk, "GROUP": GROUP, "B_NK": b_nk, "ROLES": roles},
        attrs={},
    )
    options = {"num_warps": warps, "num_stages": stages}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = cpu_s()
        try:
            kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        except RuntimeError as error:
            raise TritonFailure(
                f"Triton {VERSION} cannot compile {bm}x{bn}x{bk}, {stages} stages, {warps} warps"
                f"{' with roles' if roles else ''}: {error}"
            ) from None
        spent = cpu_s() - before
    boxes = []
    for told in kernel.metadata.tensordesc_meta:
        if (told["swizzle"], told["elem_type"], told["elem_size"]) != (_SWIZZLE_128, _BF16_ON_DEVICE, 2):
            raise TritonFailure(f"Triton {VERSION} wants a tensor map unlike ours: {told}")
        boxes.append(tuple(told["block_size"]))
    return CompiledTma(
        spent, kernel.asm["ptx"], len(kernel.asm["cubin"]), kernel.metadata.num_warps * 32,
        kernel.metadata.shared, tuple(boxes),
    )  # fmt: skip
