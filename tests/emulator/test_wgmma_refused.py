"""Are WGMMAs that the PTX ISA forbids refused, with the instruction and what is wrong with it?"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from support.wgmma import Form, multiply, ptx

from emulator import PtxError

F16 = Form("f32", "f16", "f16")
BF16, TF32 = Form("f32", "bf16", "bf16"), Form("f32", "tf32", "tf32")
FP8, S8 = Form("f32", "e4m3", "e5m2"), Form("s32", "s8", "u8")
EACH = pytest.mark.parametrize("form", [F16, BF16, TF32, FP8, S8], ids=lambda f: f.a)


def run(form: Form, text: str) -> None:
    """A kernel like that of a form, on zeros."""
    multiply(form, *(np.zeros((rows, 32), np.uint8) for rows in (64, form.n)), text=text)


def refused(form: Form, old: str, new: str, message: str, instruction: str = "wgmma.mma_async") -> None:
    """The kernel of a form that is right is refused once `new` stands for `old`, with line and reason."""
    text = ptx(form)
    assert text.count(old) == 1, old
    line = text[: text.index(old)].count("\n") + 1
    with pytest.raises(PtxError, match=f"{re.escape(instruction)}.*{re.escape(message)}") as error:
        run(form, text.replace(old, new))
    assert f"line {line}" in str(error.value)


@pytest.mark.parametrize(
    ("form", "types"),
    [
        (F16, "f32.f16.bf16"), (F16, "f32.bf16.f16"), (BF16, "bf16.bf16.bf16"), (BF16, "s32.bf16.bf16"),
        (F16, "f32.f32.f16"), (TF32, "f32.tf32.f32"), (FP8, "f32.e4m3.s8"), (FP8, "s32.e4m3.e4m3"),
        (S8, "f32.s8.s8"), (S8, "s32.s8.e4m3"), (S8, "s32.u8.f16"),
    ],
)  # fmt: skip
def test_types(form: Form, types: str) -> None:
    refused(form, f".{form.d}.{form.a}.{form.b}", f".{types}", "no product of ")


@pytest.mark.parametrize("a", ["bf16", "tf32"])
def test_no_sums_in_f16(a: str) -> None:
    refused(Form("f16", a, a), ".sync.aligned.m64", ".sync.aligned.m64", f"no product of .{a} in .f16")


@EACH
def test_shapes(form: Form) -> None:
    """K is 32 bytes; N a multiple of 8 up to 256, of 16 from 32 on for integers."""
    for shape in ("n12", "n264", "n0", "n4", *(["n40", "n56", "n248"] if form.d == "s32" else [])):
        refused(form, "m64n8", "m64" + shape, f"no shape m64{shape}k{form.k} for .{form.a}")
    for k in {8, 16, 32, 64} - {form.k}:
        refused(form, f"n8k{form.k}", f"n8k{k}", f"no shape m64n8k{k}")
    refused(form, "m64n8", "m128n8", "no shape")
    refused(form, f".m64n8k{form.k}", "", "no shape")


@EACH
def test_registers_of_d(form: Form) -> None:
    """As many as N asks for, half as many for f16, of the type of D."""
    four = "{%d0, %d1, %d2, %d3}"
    for wrong, count in (("{%d0, %d1, %d2}", 3), ("{%d0, %d1}", 2), ("{%d0, %d1, %d2, %d3, %d3}", 5)):
        refused(form, four, wrong, f"{count} registers, not 4")
    refused(form, four, "{%d0, %d1, %d2, 0}", "a fragment is of registers of 32 bits")
    refused(form, four, "{%d0, %d1, %d2, %rd9}", "a fragment is of registers of 32 bits")


@pytest.mark.parametrize(
    ("form", "kinds"),
    [
        (F16, ("u32", "s32", "f16x2")), (Form("f16", "f16", "f16"), ("u32", "s32", "f32", "bf16x2")),
        (S8, ("f32", "f16x2")),
    ],
    ids=["f32", "f16", "s32"],
)  # fmt: skip
def test_types_of_registers(form: Form, kinds: tuple[str, ...]) -> None:
    old = f".reg .b32 %r<8>, %t<4>, %a<4>, %d<{form.registers}>;"
    for kind in kinds:
        text = ptx(form).replace(old, f".reg .b32 %r<8>, %t<4>, %a<4>; .reg .{kind} %d<{form.registers}>;")
        with pytest.raises(PtxError, match=f"wgmma.mma_async.*%d0 is .{kind}: no register of D in .{form.d}"):
            run(form, text)


def test_sums_in_f16_take_half_the_registers() -> None:
    for a, n in itertools.product(("f16", "e4m3", "e5m2"), (8, 24, 256)):
        form = Form("f16", a, a, n=n)
        refused(form, f".f16.{a}.{a}", f".f32.{a}.{a}", f"{n // 4} registers, not {n // 2}")
        refused(form.but(d="f32"), f".f32.{a}.{a}", f".f16.{a}.{a}", f"{n // 2} registers, not {n // 4}")


@EACH
def test_registers_of_a(form: Form) -> None:
    form = form.but(in_registers=True)
    refused(form, "}, {%a0, %a1, %a2, %a3}", "}, {%a0, %a1, %a2}", "3 registers, not 4")
    refused(form, "}, {%a0, %a1, %a2, %a3}", "}, {%a0, %a1, %a2, %rd6}", "a fragment is of registers")


@EACH
@pytest.mark.parametrize("in_registers", [False, True])
def test_operands(form: Form, in_registers: bool) -> None:
    """Signs for floats alone, transpositions for 16 bits alone, and none for A in registers."""
    form = form.but(in_registers=in_registers)
    right = len(form.tail.split(", "))
    for count in set(range(1, 7)) - {right}:
        tail = ", ".join(["adds", "1", "1", "0", "0", "0"][:count])
        refused(form, f"%rd7, {form.tail};", f"%rd7, {tail};", f"{count + 3} operands")
    refused(form, f", %rd7, {form.tail};", ";", "2 operands")
    refused(form, f"%rd7, {form.tail};", f"%rd7, %r0{form.tail[4:]};", "is not a predicate")


@pytest.mark.parametrize("form", [F16, BF16, TF32, FP8], ids=lambda f: f.a)
def test_values_of_operands(form: Form) -> None:
    rest = ", 0, 0" if form.k == 16 else ""
    for signs in ("0, 1", "1, 0", "2, 1", "1, -2"):
        refused(form, f"adds, 1, 1{rest};", f"adds, {signs}{rest};", "a scale that is neither 1 nor -1")
    refused(form, f"adds, 1, 1{rest};", f"adds, %r0, 1{rest};", "must be a whole constant")
    if rest:
        for flips in ("2, 0", "0, 2", "-1, 0", "0, -1"):
            refused(form, "1, 1, 0, 0;", f"1, 1, {flips};", "a transposition that is neither 0 nor 1")


@EACH
def test_modifiers(form: Form) -> None:
    types = f".{form.d}.{form.a}.{form.b}"
    if form.d != "s32":
        refused(form, types, types + ".satfinite", "modifier .satfinite goes with .s32")
    refused(form, types, types + ".and.popc", "modifier .and is not known here")
    refused(form, types, f".{form.d}.b1.b1.and.popc", "products of single bits are not known here")
    refused(form, types, f".{form.d}.s4.s4", "modifier .s4 is not known here")
    refused(form, "mma_async.sync", "mma_async.sp.sync", "modifier .sp is not known here")
    refused(form, types, f".{form.a}.{form.b}", "not three types")
    refused(form, "mma_async.sync.aligned", "mma_async", "it takes .sync.aligned")
    refused(form, "mma_async.sync.aligned", "mma_async.sync", "it takes .sync.aligned")


@pytest.mark.parametrize("name", ["fence", "commit_group", "wait_group"])
def test_the_instructions_around(name: str) -> None:
    full = f"wgmma.{name}.sync.aligned"
    for part in ("", ".sync", ".aligned"):
        refused(F16, full, f"wgmma.{name}{part}", "it takes .sync.aligned", f"wgmma.{name}")
    refused(F16, full, full + ".shared", "modifier .shared is not known here", f"wgmma.{name}")


def test_groups_to_wait_for() -> None:
    for count, message in (("-1", "-1 groups"), ("%r0", "must be a whole constant"), ("1, 2", "2 operands")):
        refused(F16, "wait_group.sync.aligned 0", f"wait_group.sync.aligned {count}", message, "wgmma.wait")
