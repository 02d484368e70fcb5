"""Does the emulator acquit kernels that it does not know and that are right on silicon?

Two come from outside for sm_80: Triton's matmul with plain pointers, and a multistage GEMM of CUTLASS 2
(those for sm_90a: hopper_witnesses.py). Each is compiled here, without a GPU, and must give the right answer
without an accusation in every order. A witness is only worth what it uses, so each names the instructions it
is there for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from rooftile.plan import Arg, ConcreteLaunch, Encode, Launch, LaunchPlan, ceil_div, mul

from emulator import Order, Program, Report, run_plan

# An instruction alone on its line, perhaps behind a predicate.
_DROPPED = re.compile(r"\s*(?:@!?%?\w+\s+)?(?P<text>[a-z][\w.:]+[^;]*);\s*$")


class WitnessMissingError(Exception):
    """Its compiler is not installed; one sentence."""


ALPHA = 1.5
SM_COUNT = 4
"""Few, so that a persistent kernel has several tiles a block."""
Size: TypeAlias = tuple[int, int, int]
Pack: TypeAlias = Callable[[ConcreteLaunch, Mapping[str, int], Encode], bytes]
"""What lays out the parameters of a launch, with the buffers' addresses and what encodes tensor maps."""


@dataclass(frozen=True)
class RawLaunch:
    """A launch whose parameter is a struct that the kernel's own host code lays out."""

    plan: Callable[[Size, int], LaunchPlan]
    """For a size and so many SMs: grid, block and shared memory; no arguments."""
    pack: Callable[[Size, int, float], Pack]
    """For a size, SMs and alpha."""


@dataclass(frozen=True)
class Witness:
    """A kernel from outside: out = alpha * A * B in bf16, A m x k, B k x n or n x k."""

    name: str
    build: Callable[[], str]
    """Its PTX. WitnessMissingError where its compiler is not there."""
    plan: LaunchPlan | RawLaunch
    opcodes: tuple[str, ...]
    """Parts of instructions that must be in it."""
    b_nk: bool
    sizes: tuple[Size, ...]
    """m, n, k. Multiples of 8 (CUTLASS, tensor maps), 16 (Triton): what they were compiled for."""
    strict: Callable[[int, int, int], bool] = lambda m, n, k: True
    """Whether even reading shared memory that nobody wrote is ruled out at these sizes."""
    waits: tuple[str, ...] = ("cp.async.wait_group", "bar.sync")
    """Beginnings of instructions without which, each, the kernel is wrong and has to be accused."""
    shared_align: int = 1
    """What it takes for granted, beyond what it declares, of the place of its dynamic shared memory."""

    def missing_opcodes(self, ptx: str) -> list[str]:
        """Which of `opcodes` the PTX does not have."""
        return [name for name in self.opcodes if name not in ptx]

    def program(self, ptx: str) -> Program:
        """Its PTX, or that with something left out, to be run."""
        return Program.from_ptx(ptx, shared_align=self.shared_align)

    def without(self, ptx: str, dropped: str) -> str:
        """Its PTX without every instruction that begins so. A try_wait gives a predicate: it always says
        yes."""
        lines = []
        for line in ptx.splitlines():
            found = _DROPPED.match(line)
            if found is None or not found["text"].startswith(dropped):
                lines.append(line)
            elif found["text"].startswith("mbarrier.try_wait"):
                lines.append(f"setp.eq.b32 {found['text'].split()[1].rstrip(',')}, 0, 0;")
        return "\n".join(lines)


def _triton_ptx(bm: int, bn: int, bk: int, stages: int, warps: int) -> Callable[[], str]:
    def build() -> str:
        try:
            from bench.peers import triton_matmul
        except ImportError:
            raise WitnessMissingError("the wheel triton is not installed (extra `peers`)") from None
        return triton_matmul.compile_matmul(80, bm, bn, bk, stages, warps).ptx

    return build


def _triton(bm: int, bn: int, bk: int, stages: int, warps: int) -> Witness:
    sizes = ("m", "n", "k")
    pitches = {"ld_a": "k", "ld_b": "n", "ld_out": "n"}
    args = (
        *(Arg.ptr(x) for x in ("a", "b", "out")),
        *(Arg(x, "i32", value=x) for x in sizes),
        *(Arg(x, "i32", value=size) for x, size in pitches.items()),
        Arg.f32("alpha"),
        # Two pointers to scratch memory that Triton adds to every kernel; these have none.
        Arg.ptr("scratch", "lse"),
        Arg.ptr("profile", "lse"),
    )
    # Shared memory: Triton asks for what its stages take; a little more does no harm to a witness.
    smem = stages * (bm * bk + bk * bn) * 2 + bm * bn * 2
    grid = (mul(ceil_div("m", bm), ceil_div("n", bn)), 1, 1)
    launch = Launch("matmul", args, grid=grid, block=(warps * 32, 1, 1), smem=smem)
    plan = LaunchPlan("witness", "sm_80", "cuda", ("matmul",), sizes, (launch,))
    return Witness(
        name=f"Triton matmul {bm}x{bn}x{bk}, {stages} stages, {warps} warps",
        build=_triton_ptx(bm, bn, bk, stages, warps),
        plan=plan,
        opcodes=("cp.async.cg.shared.global", "cp.async.commit_group", "cp.async.wait_group",
                 "ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix.sync.aligned.m8n8.x4.trans",
                 "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "bar.sync"),
        b_nk=False,
        sizes=((2 * bm, bn, 5 * bk), (bm + 16, bn + 32, 3 * bk + 16), (16, 16, 16)),
    )  # fmt: skip


def _cutlass() -> Witness:
    from bench.peers import cutlass_gemm as peer

    def build() -> str:
        try:
            return peer.compile_gemm()
        except peer.CutlassMissingError as error:
            raise WitnessMissingError(str(error)) from None

    bm, bn, bk = peer.TILE
    sizes = ("m", "n", "k")
    args = (*(Arg.ptr(x) for x in ("a", "b", "out")), *(Arg.i64(x) for x in sizes), Arg.f32("alpha"))
    launch = Launch(
        peer.ENTRY, args, grid=(ceil_div("m", bm), ceil_div("n", bn), 1), block=(peer.THREADS, 1, 1),
        smem=peer.SHARED_BYTES,
    )  # fmt: skip
    return Witness(
        name=f"CUTLASS 2 GEMM {bm}x{bn}x{bk}, {peer.STAGES} stages",
        build=build,
        plan=LaunchPlan("witness", "sm_80", "cuda", (peer.ENTRY,), sizes, (launch,)),
        opcodes=("cp.async.cg.shared.global.L2::128B", "cp.async.commit_group", "cp.async.wait_group 2",
                 "ldmatrix.sync.aligned.x4.m8n8.shared.b16", "shfl.sync.idx.b32",
                 "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "bar.sync"),
        b_nk=True,
        sizes=((2 * bm, bn, 5 * bk), (2 * bm + 8, bn + 8, 10 * bk), (64, 64, 8), (72, 40, 40)),
        # Past its first stages it leaves out copies of rows outside the result, and multiplies what lies
        # there.
        strict=lambda m, n, k: m % bm == 0 and n % bn == 0,
    )  # fmt: skip


def witnesses() -> Sequence[Witness]:
    """All of them; nothing is compiled yet."""
    return (_triton(128, 128, 32, 4, 4), _triton(64, 64, 32, 3, 4), _cutlass())


def run_witness(
    witness: Witness, program: Program, size: Size, order: Order, seed: int
) -> tuple[float, Report]:
    """Run once: the error (norm of the difference over the norm of the float64 product) and the Report."""
    m, n, k = size
    rng = np.random.default_rng(seed)
    bf16 = ml_dtypes.bfloat16
    a = rng.uniform(-1, 1, (m, k)).astype(bf16)
    b = rng.uniform(-1, 1, (n, k) if witness.b_nk else (k, n)).astype(bf16)
    out = np.full((m, n), np.nan).astype(bf16)
    given, more = witness.plan, dict[str, Any]()
    if isinstance(given, RawLaunch):
        plan, more["pack"] = given.plan(size, SM_COUNT), given.pack(size, SM_COUNT, ALPHA)
    else:
        plan = given
    report = run_plan(
        program, plan, {"m": m, "n": n, "k": k}, {"a": a, "b": b, "out": out}, {"alpha": ALPHA},
        order=order, sm_count=SM_COUNT, strict=witness.strict(m, n, k), **more,
    )  # fmt: skip
    wide_b = b.astype(np.float64)
    wanted = ALPHA * (a.astype(np.float64) @ (wide_b.T if witness.b_nk else wide_b))
    error = float(np.linalg.norm(out.astype(np.float64) - wanted) / np.linalg.norm(wanted))
    return error, report
