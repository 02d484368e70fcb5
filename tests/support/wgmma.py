"""One WGMMA, in PTX written by hand: what does the emulator make of given bits?

The operands lie in shared memory K-major without a swizzle, or (A) in registers; which register of which
lane holds what is written here a second time, from the figures of PTX ISA 9.7.15.5.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from rooftile.plan import Arg
from support.hopper import run

from emulator import Program

BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
TYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8, "f32": np.float32, "s32": np.int32,
}  # fmt: skip
LANES = 32
_THREAD = np.arange(128)
_GROUP, _IN_GROUP = _THREAD % LANES // 4, _THREAD % 4
_ROW = 16 * (_THREAD // LANES) + _GROUP


@dataclass(frozen=True)
class Form:
    """A WGMMA: its types and N, and what else it says."""

    d: str
    a: str
    b: str
    n: int = 8
    in_registers: bool = False
    """Where A is."""
    adds: bool = True
    """The value of the predicate `adds`."""
    scale_d: str = "adds"
    """The operand: that predicate, or a constant."""
    signs: tuple[int, int] = (1, 1)
    """imm-scale-a and imm-scale-b; integers have none."""
    satfinite: bool = False
    times: int = 1
    """How often it is done, each time behind the last one in the same group."""

    def but(self, **changed: Any) -> Form:
        """The same with something else."""
        return replace(self, **changed)

    @property
    def k(self) -> int:
        """Elements along K."""
        return 32 // BYTES[self.a]

    @property
    def registers(self) -> int:
        """Of D, of each thread."""
        return self.n // 4 if self.d == "f16" else self.n // 2

    @property
    def instruction(self) -> str:
        """Opcode and modifiers."""
        sat = ".satfinite" if self.satfinite else ""
        shape = f"m64n{self.n}k{self.k}"
        return f"wgmma.mma_async.sync.aligned.{shape}.{self.d}.{self.a}.{self.b}{sat}"

    @property
    def tail(self) -> str:
        """The operands behind the matrices."""
        told = [self.scale_d]
        if self.d != "s32":
            told += [str(x) for x in self.signs]
        if BYTES[self.a] == 2:
            told += ["0"] if self.in_registers else ["0", "0"]
        return ", ".join(told)


def ptx(form: Form) -> str:
    """A kernel of one warpgroup: `b`, the image of both operands, is copied to shared memory, A's registers
    are read from `a`, D's from `c` and written to `out`."""
    count, total = form.registers, (64 + form.n) * 2
    d, a = (f"{{{', '.join(f'%{x}{i}' for i in range(n))}}}" for x, n in (("d", count), ("a", 4)))
    copies = []
    for at in range(0, total, 128):
        copies += [
            f"add.u32 %r1, %r0, {at}; setp.lt.u32 %p1, %r1, {total}; mul.wide.u32 %rd4, %r1, 16;",
            "add.u64 %rd5, %rd0, %rd4; shl.b32 %r2, %r1, 4; add.u32 %r2, %r2, %r3;",
            "@%p1 ld.global.v4.b32 {%t0, %t1, %t2, %t3}, [%rd5];",
            "@%p1 st.shared.v4.b32 [%r2], {%t0, %t1, %t2, %t3};",
        ]
    mma = f"{form.instruction} {d}, {a if form.in_registers else '%rd6'}, %rd7, {form.tail};"
    return "\n".join(
        [
            ".version 8.5\n.target sm_90a\n.address_size 64",
            f".shared .align 128 .b8 raw[{total * 16}];",
            ".visible .entry run(",
            ".param .u64 b, .param .u64 a, .param .u64 c, .param .u64 out, .param .u64 scale_d)",
            ".reqntid 128, 1, 1\n{",
            f".reg .pred %p1, adds; .reg .b32 %r<8>, %t<4>, %a<4>, %d<{count}>; .reg .b64 %rd<10>;",
            *(f"ld.param.u64 %rd{i}, [{name}];" for i, name in enumerate(("b", "a", "c", "out"))),
            "ld.param.u64 %rd4, [scale_d]; setp.ne.u64 adds, %rd4, 0;",
            "mov.u32 %r0, %tid.x; mov.u32 %r3, raw;",
            *copies,
            "mul.wide.u32 %rd4, %r0, 16; add.u64 %rd1, %rd1, %rd4;",
            "ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%rd1];",
            f"mul.wide.u32 %rd4, %r0, {4 * count}; add.u64 %rd2, %rd2, %rd4; add.u64 %rd3, %rd3, %rd4;",
            *(f"ld.global.b32 %d{i}, [%rd2+{4 * i}];" for i in range(count)),
            "fence.proxy.async; bar.sync 0;",
            # Pieces of 8 rows by 16 bytes: two along K 128 bytes apart, groups of 8 rows 256.
            f"shr.u32 %r5, %r3, 4; cvt.u64.u32 %rd6, %r5; or.b64 %rd6, %rd6, {8 << 16 | 16 << 32};",
            f"add.u64 %rd7, %rd6, {64 * 32 >> 4};",
            "wgmma.fence.sync.aligned;",
            *([mma] * form.times),
            "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;",
            *(f"st.global.b32 [%rd3+{4 * i}], %d{i};" for i in range(count)),
            "ret;\n}\n",
        ]
    )


def _image(matrix: Any) -> Any:
    """Rows of 32 bytes as pieces of 8 rows by 16 bytes."""
    return matrix.reshape(-1, 8, 2, 16).transpose(0, 2, 1, 3).reshape(-1)


def _a_registers(matrix: Any) -> Any:
    """(128, 4) registers of A: the four bytes of register r are of row g + 8 (r % 2) of the warp's 16, from
    16 (r / 2) + 4 t on, for every type."""
    found = np.empty((128, 4, 4), np.uint8)
    for r in range(4):
        for byte in range(4):
            found[:, r, byte] = matrix[_ROW + 8 * (r % 2), 16 * (r // 2) + 4 * _IN_GROUP + byte]
    return found.view(np.uint32)[..., 0]


def d_registers(form: Form, d: Any) -> Any:
    """(128, registers) of D (64, n) in its type: two columns side by side, then the row 8 further on."""
    found = np.empty((128, form.n // 2), d.dtype)
    for i in range(form.n // 2):
        found[:, i] = d[_ROW + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * _IN_GROUP + i % 2]
    return found.view(np.uint32)


def d_matrix(form: Form, registers: Any) -> Any:
    """The inverse of d_registers."""
    flat = registers.view(TYPES[form.d])
    found = np.empty((64, form.n), flat.dtype)
    for i in range(form.n // 2):
        found[_ROW + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * _IN_GROUP + i % 2] = flat[:, i]
    return found


def multiply(
    form: Form, a: Any, b: Any, d: Any = None, order: str = "late", text: str = "", **more: Any
) -> Any:
    """D (64, n) of A (64, k), B (n, k) and D, each in its type or as bits of that size. Without D it holds
    NaN (integers: -1) before. `text`: a kernel in place of the form's own; `more`: for run_plan."""
    if d is None:
        d = np.full((64, form.n), -1 if form.d == "s32" else np.nan).astype(TYPES[form.d])
    a, b = (np.ascontiguousarray(x).view(np.uint8).reshape(len(x), 32) for x in (a, b))
    nothing = np.full_like(a, 0x5A)
    arrays = {
        "b": np.concatenate([_image(nothing if form.in_registers else a), _image(b)]),
        "a": _a_registers(a if form.in_registers else nothing),
        "c": d_registers(form, d), "out": np.zeros((128, form.registers), np.uint32),
    }  # fmt: skip
    args = [*(Arg.ptr(x) for x in arrays), Arg.i64("scale_d", int(form.adds))]
    report = run(Program.from_ptx(text or ptx(form)), arrays, args, order=order, **more)
    assert report.clean, report.faults[0].message
    return d_matrix(form, arrays["out"])


__all__ = ["BYTES", "TYPES", "Form", "d_registers", "multiply", "ptx"]
