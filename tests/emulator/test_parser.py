"""Does the parser read PTX as compilers emit it and as people write it, and refuse the rest with its line?"""

from __future__ import annotations

import struct
import time

import pytest
from support.ptx_sources import nvrtc_ptx, triton_ptx
from support.ptx_texts import CALLS, HEAD, HOPPER, INLINED

from emulator.errors import EmulatorError, PtxError
from emulator.ptx.nodes import (
    Address,
    Arguments,
    Function,
    Imm,
    Instruction,
    Label,
    Module,
    Negated,
    Pair,
    Place,
    Reg,
    Sink,
    Special,
    Symbol,
    Vector,
)
from emulator.ptx.parser import parse
from emulator.ptx.printer import print_module


def body(text: str) -> Function:
    """The function whose body is `text`."""
    return parse(HEAD + ".entry k(.param .u64 p) {\n" + text + "\n}\n").functions[0]


def one(text: str, declarations: str = "") -> Instruction:
    """The one instruction that `text` is, with registers %r<9>, %rd<9>, %f<9>, %p<9>."""
    found = body(
        f".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<9>; {declarations} {text}"
    ).body
    assert len(found) == 1
    return found[0]


def operations(function: Function) -> list[str]:
    return [".".join((i.opcode, *i.modifiers)) for i in function.body]


def names(instruction: Instruction) -> list[str]:
    return [o.name for o in instruction.operands if isinstance(o, Reg | Label | Symbol | Special)]


@pytest.mark.parametrize(("major", "arch"), [(12, "sm_70"), (12, "sm_90a"), (13, "sm_80"), (13, "sm_90a")])
def test_nvrtc(major: int, arch: str) -> None:
    module = parse(nvrtc_ptx(major, arch))
    assert module.target == (arch,)
    assert module.address_size == 64
    assert list(module.files.values()) == ["t.cu"] or "t.cu" in next(iter(module.files.values()))
    first = module.function("first")
    assert first.is_entry
    assert first.linkage == "visible"
    assert first.directives["maxntid"] == (128, 1, 1)
    assert first.directives["minnctapersm"] == (2,)
    assert [(p.size, p.offset) for p in first.params] == [(8, 0), (8, 8), (4, 16), (8, 24), (8, 32)]
    assert first.param_bytes == 40
    big = module.function("second").params[0]
    assert (big.type, big.shape, big.align) == ("b8", (40,), 8)
    table = next(v for v in module.variables if v.name == "table")
    assert (table.space, table.size, table.data) == ("const", 16, struct.pack("<4f", 1, 0.5, -2, 3))
    counter = next(v for v in module.variables if v.name == "counter")
    assert (counter.space, counter.data) == ("global", b"\7\0\0\0")
    message = next(v for v in module.variables if v.name == "message")
    assert message.relocations[0].generic
    text = next(v for v in module.variables if v.name == message.relocations[0].symbol.name)
    assert text.data is not None
    assert text.data.rstrip(b"\0") == b"hello"
    dynamic = next(v for v in module.variables if v.name == "dynamic")
    assert (dynamic.extern, dynamic.space, dynamic.size) == (True, "shared", 0)
    fixed = next(v for v in first.variables if v.space == "shared")
    assert fixed.size == 132
    assert "bar.sync" in operations(first) or "barrier.sync" in operations(first)


@pytest.mark.parametrize("major", [12, 13])
def test_inline_assembly_has_names_of_its_own_and_a_place(major: int) -> None:
    first = parse(nvrtc_ptx(major, "sm_90a")).function("first")
    tests = [i for i in first.body if i.opcode == "setp" and isinstance(i.operands[0], Reg)]
    ours = [i for i in tests if str(i.operands[0].name).split("$")[0] == "p"]  # type: ignore[union-attr]
    assert len(ours) == 2
    assert ours[0].operands[0] != ours[1].operands[0]
    for test in ours:
        branch = first.body[first.body.index(test) + 1]
        assert (branch.opcode, branch.guard, branch.negated) == ("bra", test.operands[0], True)
        target = first.body[first.labels[names(branch)[0]]]
        assert (target.opcode, target.operands[1]) == ("mov", Imm(0))
        assert test.place is not None
        line = test.place.line
        assert test.place.inlined_at is not None
        assert test.place.inlined_at.line > line


def test_triton_matmul() -> None:
    text = triton_ptx(80)
    module = parse(text)
    assert parse(print_module(module)) == module
    found = set(operations(module.functions[0]))
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in found
    assert any(o.startswith("cp.async.cg.shared.global") for o in found)
    assert any(o.startswith("ldmatrix.sync.aligned.m8n8.x4") for o in found)
    assert module.functions[0].directives["reqntid"] == (128, 1, 1)


def test_every_instruction_of_a_real_text_is_there() -> None:
    text = nvrtc_ptx(13, "sm_80")
    module = parse(text)
    semicolons = 0
    depth = 0
    for raw in text.split(".section")[0].split("\n"):
        line = raw.split("//")[0].strip()
        if depth and not line.startswith("."):
            semicolons += line.count(";")
        depth += line.count("{") * (line[:1] == "{") - line.count("}") * (
            line[-1:] == "}" and "{" not in line
        )
    assert sum(len(f.body) for f in module.functions) == semicolons > 100


@pytest.mark.parametrize("text", [HOPPER, CALLS, INLINED])
def test_round_trip_of_written_text(text: str) -> None:
    module = parse(text)
    printed = print_module(module)
    again = parse(printed)
    assert again == module
    assert print_module(again) == printed


@pytest.mark.parametrize(("major", "arch"), [(12, "sm_70"), (13, "sm_90a")])
def test_round_trip_of_real_text(major: int, arch: str) -> None:
    module = parse(nvrtc_ptx(major, arch))
    assert parse(print_module(module)) == module


def test_places_follow_inlining() -> None:
    found = parse(INLINED).functions[0].body
    assert found[0].place == Place("/k.cu", 9, 3, Place("/k.cu", 21, 3))
    assert found[1].place == Place("/k.cu", 15, 3, Place("/inc/h.cuh", 10, 5, Place("/k.cu", 27, 3)))


def test_lines_are_those_of_the_text() -> None:
    function = body("/* one\ntwo */ .reg .b32 a; // three\nmov.b32\n a, 1;\nret;")
    assert [i.line for i in function.body] == [7, 9]


def test_inner_scopes() -> None:
    function = body(
        """.reg .b32 a; .reg .pred q; mov.b32 a, 1;
        { .reg .b32 a; mov.b32 a, 2; { .reg .b32 a; mov.b32 a, 3; } mov.b32 a, 4; }
        { .reg .b32 a; mov.b32 a, 5; L: bra L; } mov.b32 a, 6; L: @q bra L; bra M; M:"""
    )
    registers = [i.operands[0] for i in function.body if i.opcode == "mov"]
    assert all(isinstance(r, Reg) for r in registers)
    assert [r.name for r in registers] == ["a", "a$2", "a$3", "a$2", "a$4", "a"]  # type: ignore[union-attr]
    assert {r.name for r in function.registers} == {"a", "q", "a$2", "a$3", "a$4"}
    assert all(function.registers[r.index] is r for r in function.registers)
    branches = [i.operands[0] for i in function.body if i.opcode == "bra"]
    assert branches == [Label("L"), Label("L$2"), Label("M")]
    assert function.labels == {"L": 5, "L$2": 7, "M": 9}


def test_a_label_inside_is_not_seen_outside() -> None:
    with pytest.raises(PtxError, match=r"PTX line 7: 'L' is not declared"):
        body("{ L: ret; }\n\nbra L;")


def test_ranges_of_registers() -> None:
    function = body(".reg .b32 %r<3>, %r10<2>; .reg .f16 h; add.s32 %r2, %r101, %r0; neg.f16 h, h;")
    assert [(r.name, r.type, r.index) for r in function.registers] == [
        ("h", "f16", 0), ("%r2", "b32", 1), ("%r101", "b32", 2), ("%r0", "b32", 3),
    ]  # fmt: skip
    for name in ("%r3", "%r02", "%r102", "%r10", "%r99999999999999999999"):
        with pytest.raises(PtxError, match=f"line 5: the register '{name}' is not declared"):
            body(f".reg .b32 %r<3>, %r10<2>; add.s32 %r2, {name}, %r0;")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", Imm(0)),
        ("-1", Imm(-1)),
        ("017", Imm(15)),
        ("0x7fU", Imm(127)),
        ("0b101", Imm(5)),
        ("4294967295", Imm(4294967295)),
        ("-9223372036854775808", Imm(1 << 63)),
        ("18446744073709551615", Imm((1 << 64) - 1)),
        ("0f3F800000", Imm(0x3F800000, "f32")),
        ("0F7fc00000", Imm(0x7FC00000, "f32")),
        ("0d3FF0000000000000", Imm(0x3FF0000000000000, "f64")),
        ("1.5", Imm(0x3FF8000000000000, "f64")),
        ("-2.", Imm(0xC000000000000000, "f64")),
        ("1e3", Imm(0x408F400000000000, "f64")),
        ("2.5E-1", Imm(0x3FD0000000000000, "f64")),
        ("(1 + 2 * 3) - 10 / 4", Imm(5)),
        ("7 & 3 | 8 ^ 1", Imm(7 & 3 | 8 ^ 1)),
        ("1 << 4 >> 1", Imm(8)),
        ("-7 / 2", Imm(-3)),
        ("-7 % 3", Imm(-1)),
        ("~0", Imm(-1)),
        ("!3", Imm(0)),
        ("2 > 1 && 3 != 3 || 1", Imm(1)),
        ("(.u64) -1", Imm((1 << 64) - 1)),
        ("-1U > 0", Imm(1)),
        ("-1 > 0", Imm(0)),
        ("8 - 3 - 2", Imm(3)),
        ("(3 >= 3) + (2 <= 2) * 2 + (3 > 3) * 4 + (2 < 2) * 8 + (1 == 1) * 16", Imm(19)),
        ("5 << 0", Imm(5)),
        ("WARP_SZ * 4", Imm(128)),
    ],
)
def test_constants(text: str, expected: Imm) -> None:
    assert one(f"mov.b64 %rd1, {text};").operands[1] == expected


def test_immediates_as_floats() -> None:
    assert Imm(0x3FC00000, "f32").as_float() == 1.5
    assert Imm(0x4000000000000000, "f64").as_float() == 2.0
    assert Imm(-3).as_float() == -3.0


def test_operands() -> None:
    setp = one("setp.lt.and.f32 %p1|%p2, %f0, 0f3F800000, !%p3;")
    assert setp.modifiers == ("lt", "and", "f32")
    assert isinstance(setp.operands[0], Pair)
    assert isinstance(setp.operands[3], Negated)
    elect = one("elect.sync _|%p1, -1;").operands[0]
    assert isinstance(elect, Pair)
    assert elect.first == Sink()
    load = one("@!%p1 ld.global.L1::no_allocate.v2.f32 {%f1, _}, [%rd1+-16];")
    assert load.modifiers == ("global", "L1::no_allocate", "v2", "f32")
    assert load.negated
    assert load.guard is not None
    assert load.guard.name == "%p1"
    vector, address = load.operands
    assert isinstance(vector, Vector)
    assert vector.items[1] == Sink()
    assert isinstance(address, Address)
    assert address.offset == -16
    assert one("ld.param.u64 %rd1, [p+4];").operands[1] == Address(Symbol("p"), 4)
    assert one("ld.const.b32 %r1, [64];").operands[1] == Address(64)
    assert one("mov.u32 %r1, %tid.x;").operands[1] == Special("%tid.x")
    tensor = one("cp.async.bulk.prefetch.tensor.2d.L2.global [%rd1, {%r1, 5}];").operands[0]
    assert isinstance(tensor, Address)
    assert tensor.coords is not None
    assert tensor.coords.items[1] == Imm(5)
    call = one("call.uni (p), k, (p, 3);").operands
    assert call == (Arguments((Symbol("p"),)), Symbol("k"), Arguments((Symbol("p"), Imm(3))))
    assert one("call k;").operands == (Arguments(()), Symbol("k"), Arguments(()))
    part = one("mov.b32 v.y, 1;", ".reg .v4 .b32 v;").operands[0]
    assert isinstance(part, Reg)
    assert part.name == "v$y"
    shared = body(".shared .align 8 .b8 s[64]; .reg .b32 r; mov.u32 r, s+8;")
    assert shared.body[0].operands[1] == Symbol("s", 8)
    apart = one("mma.sync.aligned.m16n8k8 .row.col.f32 .tf32.tf32.f32 {%f1, %f2}, {%r1}, {%r2}, {%f3, %f4};")
    assert apart.modifiers == ("sync", "aligned", "m16n8k8", "row", "col", "f32", "tf32", "tf32", "f32")


def test_indirect_branch_and_calls() -> None:
    hopper = parse(HOPPER).functions[0]
    assert hopper.branch_targets == {"TABLE": ("A", "B", "A")}
    assert hopper.directives["reqnctapercluster"] == (2, 1, 1)
    assert hopper.directives["explicitcluster"] == ()
    assert [p.pointer for p in hopper.params] == [None, "global", None]
    module = parse(CALLS)
    main = module.function("main")
    assert main.directives == {"maxntid": (32, 2, 1), "pragma": ("nounroll", "used_bytes_mask 1")}
    assert main.prototypes["proto"].params[1].size == 24
    assert main.call_targets == {"list": ("twice",)}
    calls = [i for i in main.body if i.opcode == "call"]
    assert [len(i.operands) for i in calls] == [3, 4, 4, 3]
    assert len({str(i.operands[0]) for i in calls[:3]}) == 3
    assert calls[1].operands[3] == Symbol("proto")
    where = next(v for v in module.variables if v.name == "where")
    assert [(r.offset, r.symbol, r.generic) for r in where.relocations] == [
        (0, Symbol("numbers", 8), True), (8, Symbol("numbers", 4), False), (16, Symbol("twice"), False),
    ]  # fmt: skip
    cut = next(v for v in module.variables if v.name == "cut")
    assert cut.data == bytes([0, 0, 131187 >> 8 & 255])
    assert [(r.offset, r.shift, r.generic) for r in cut.relocations] == [(0, 0, False), (1, 8, True)]
    numbers = next(v for v in module.variables if v.name == "numbers")
    assert (numbers.shape, numbers.data) == ((4,), struct.pack("<IiII", 1, -2, 0xFFFFFFFF, 8))
    real = next(v for v in module.variables if v.name == "real")
    assert (real.shape, real.size, real.data) == ((2, 2), 16, struct.pack("<3f", 0.5, 2.0, 1.0))
    assert module.function("twice").defined


def test_bytes_after_the_end_of_a_c_string_are_no_text() -> None:
    assert isinstance(parse(INLINED + "\0"), Module)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, r"expected \.version"),
        (".version 12.0\n.target sm_80", 1, r"unknown \.version '12\.0'"),
        (".version 8.0\n.target sm_eighty", 2, r"unknown \.target"),
        (".version 8.0\n", 2, r"no \.target"),
        (HEAD + ".address_size 32\n", 4, "32 is not supported"),
        (HEAD + ".texture foo;", 4, r"unknown directive '\.texture'"),
        (HEAD + ".section .text { }", 4, "unknown section"),
        (HEAD + ".section .debug_x { {", 4, "ends in the middle"),
        (HEAD + ".global .u32 x = 1.5;", 4, "a float as initial value"),
        (HEAD + ".shared .u32 x = 1;", 4, "has an initialiser"),
        (HEAD + ".global .u32 x[2] = {1,2,3};", 4, "more than 2"),
        (HEAD + ".global .u64 x = y;", 4, "'y' is not declared"),
        (HEAD + ".global .u32 x[1099511627776][1099511627776];", 4, "bytes, at most"),
        (HEAD + ".global .u32 x[100000000] = {1};", 4, "at most"),
        (HEAD + ".global .align 3 .u32 x;", 4, "power of two"),
        (HEAD + ".global .f8 x;", 4, "expected a type"),
        (HEAD + ".entry k(.reg .u32 a) {}", 4, r"\(\.reg\) is not supported"),
        (HEAD + ".entry k(.param .u32 a, .param .u32 a) {}", 4, "two parameters"),
        (HEAD + ".entry k() { ret; }\n.entry k() { ret; }", 5, "defined twice"),
        (HEAD + ".entry k() {\n ret;", 5, "'}' is missing"),
        (HEAD + ".entry k() { /* ", 4, "without its"),
        (HEAD + '.entry k() { .pragma "x\n; }', 4, "expected a string"),
        (HEAD + ".entry k() .maxntid 0 { }", 4, "from 1"),
        (HEAD + ".entry k() .maxntid 1, 1, 1, 1 { }", 4, "expected '{'"),
        (HEAD + ".alias a, b;", 4, "'b' is not declared"),
        (HEAD + ".entry k() { .loc 1 2 3 }", 4, r"no \.file 1"),
        (HEAD + ".file one", 4, "number of a file"),
    ],
)
def test_bad_modules(text: str, line: int, message: str) -> None:
    with pytest.raises(PtxError, match=message) as caught:
        parse(text)
    assert caught.value.line == line
    assert isinstance(caught.value, EmulatorError)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mvo.b32 %r1, %r2;", r"unknown instruction 'mvo\.b32'"),
        ("mov.b32 %r1, %r2", "expected ',' or ';'"),
        ("mov.b32 %r1 %r2;", "expected ',' or ';'"),
        ("mov.b32 %r1, %zid.x;", "unknown operand"),
        ("mov.b32 %r1, %tidx;", "'%tidx' is not declared"),
        ("mov.b32 %r1, foo;", "'foo' is not declared"),
        ("mov.b32 %r1, 12abc;", "'12abc' is no constant"),
        ("mov.b32 %r1, 0f3F8;", "no constant"),
        ("mov.b32 %r1, 09;", "no constant"),
        ("mov.b32 %r1, 99999999999999999999;", "64 bits"),
        ("mov.b32 %r1, 1e999;", "does not fit"),
        ("mov.b32 %r1, 1/0;", "division by zero"),
        ("mov.b32 %r1, 1<<64;", "shift by 64"),
        ("mov.b32 %r1, 1<<-1;", "shift by -1"),
        ("mov.b32 %r1, ~1.0;", "before a float"),
        ("mov.b32 %r1, " + "(" * 5000 + "1" + ")" * 5000 + ";", "nested too deeply"),
        ("mov.b32 %r1, " + "-" * 5000 + "1;", "nested too deeply"),
        ("mov.b32 %r1, 1" + "+1" * 5 + "+;", "no constant"),
        ("mov.b32 {%r1, {%r2}}, 1;", "no constant"),
        ("ld.global.b32 %r1, [%rd1+%rd2];", "no constant"),
        ("ld.global.b32 %r1, [foo];", "'foo' is not declared"),
        ("ld.global.b32 %r1, [%tid.x];", "is no address"),
        ("bra nowhere;", "'nowhere' is not declared"),
        ("L: L: ret;", "set twice"),
        (".reg .b32 %x; .reg .b32 %x;", "declared twice"),
        (".reg .b33 %x;", "type of a register"),
        (".reg .b32 %x<-1>;", "no constant"),
        (".texref x;", r"unknown directive '\.texref'"),
        ("@%r mov.b32 %r1, 1;", "'%r' is not declared"),
        ("setp.eq.s32 %p1|3, %r1, %r2;", "expected a register"),
        ("brx.idx %r1, T; T: .branchtargets A;", "'A' is not declared"),
        ("{ " * 5000, "nested blocks"),
        ("mov.b32 {" + "%r1," * 600 + "%r1}, 1;", "more than 512"),
        ("mov.b32 %r1, \N{SUPERSCRIPT TWO};", "no constant"),
        ("mov.b32 %r1, \x00;", "no constant"),
    ],
)
def test_bad_bodies(text: str, message: str) -> None:
    with pytest.raises(PtxError, match=message) as caught:
        body(".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>;\n" + text)
    assert caught.value.line >= 6


def test_a_range_of_a_billion_registers_costs_nothing() -> None:
    started = time.process_time()
    assert len(body(".reg .b32 %r<1000000000>; mov.b32 %r999999999, 1;").registers) == 1
    assert time.process_time() - started < 2  # 0.1 to 0.5 s; machines that are shared may take twice that


def test_inlining_in_a_circle_ends() -> None:
    text = '.file 1 "a"\n' + HEAD + ".entry k() {\n.loc 1 1 1\n"
    text = HEAD + '.file 1 "a"\n.entry k() {\n.loc 1 1 1\n'
    text += ".loc 1 1 1, function_name x, inlined_at 1 1 1\n" * 20000 + "ret; }"
    module = parse(text)
    assert repr(module.functions[0].body[0].place)


@pytest.mark.parametrize(
    "unit",
    [
        "mad.lo.s32 %r1, %r2, %r3, %r4;\n",
        "{ .reg .pred p; L: @p bra L; }\n",
        "@%p1 ld.global.v2.b32 {%r1, %r2}, [%rd1+8];\n",
    ],
)
def test_ten_thousand_lines_take_less_than_a_second(unit: str) -> None:
    text = ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>;\n" + unit * 10000
    started = time.process_time()
    assert len(body(text).body) == 10000
    assert time.process_time() - started < 2  # 0.1 to 0.5 s; machines that are shared may take twice that


@pytest.mark.parametrize(
    "piece", ["/*", '"', '"\\', "/ ", "[", "@", "%", ".", "0x", "::", "{(", "1e", "$", "L:", "!"]
)
def test_long_nonsense_ends_soon(piece: str) -> None:
    started = time.process_time()
    for text in (piece * 100000, (piece + "\n") * 30000):
        with pytest.raises(PtxError):
            body(text)
    assert time.process_time() - started < 3
