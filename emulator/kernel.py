"""What of a kernel is known before it runs: where its variables lie, its blocks of instructions?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from emulator.errors import EmulatorError, PtxError
from emulator.ptx.nodes import Address, Function, Imm, Instruction, Module, Place, Reg, Vector

if TYPE_CHECKING:
    from emulator.machine.wave import Step, Wave

BITS = {
    "pred": 1, "b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16,
    "b32": 32, "u32": 32, "s32": 32, "f32": 32, "f16x2": 32, "bf16x2": 32, "tf32": 32,
    "u16x2": 32, "s16x2": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64, "f32x2": 64, "b128": 128,
    "e4m3": 8, "e5m2": 8, "e4m3x2": 16, "e5m2x2": 16,
}  # fmt: skip
"""Width of every fundamental and packed type."""

SPACES = ("global", "shared", "local", "const", "param")
_MOST_LOCAL = 512 << 10
"""Of a thread (CUDA C++ Programming Guide, technical specifications)."""
_WAITS = {"mbarrier": ("test_wait", "try_wait"), "wgmma": ("wait_group",), "setmaxnreg": ("inc",)}
"""Instructions that end a block too where they may wait: those that wait try again from there."""
_ENDS = {"bra", "brx", "exit", "ret", "bar", "barrier", "trap", "call"}
"""A block ends behind these."""
_ORDERING = {"acquire", "release", "acq_rel", "relaxed", "volatile", "mmio"}

CLASSES: dict[str, str] = {
    **dict.fromkeys(("mma", "wmma", "wgmma", "tcgen05"), "matrix"),
    **dict.fromkeys(("ld", "ldu", "ldmatrix", "prefetch", "prefetchu"), "load"),
    **dict.fromkeys(("st", "stmatrix", "red", "atom"), "store"),
    "cp": "copy",
    **dict.fromkeys(("bar", "barrier", "fence", "membar", "mbarrier", "setmaxnreg"), "sync"),
    **dict.fromkeys(("bra", "brx", "exit", "ret", "call", "trap"), "branch"),
    "cvt": "convert", "cvta": "integer", "mov": "move",
    **dict.fromkeys(("shfl", "vote", "match", "redux", "activemask", "elect"), "warp"),
    **dict.fromkeys(("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"), "special"),
}  # fmt: skip


STRETCH = 64
"""Instructions of a block that are decoded and run between two looks at the clock."""


class Block:
    """Instructions from `start` on that are run together: the steps of each stretch of them, then `finish`,
    which says where to go on. Stretches are decoded when first reached."""

    def __init__(self, kernel: Kernel, start: int) -> None:
        body = kernel.body
        classes: Counter[str] = Counter()
        at, ends = start, False
        while at < len(body) and not ends and (at == start or at not in kernel.starts):
            classes["instructions." + CLASSES.get(body[at].opcode, _class_of(body[at]))] += 1
            ends = ends_block(body[at])
            at += 1
        self._kernel = kernel
        self.start = start
        self.length: int = at - start
        """How many instructions."""
        self.inner: int = self.length - ends
        """How many of them before `finish`."""
        self.classes = tuple(classes.items())
        self._stretches: list[tuple[Step, ...]] = []

    def steps(self, first: int) -> tuple[Step, ...]:
        """Those of the stretch that begins `first` instructions behind the start, a multiple of STRETCH."""
        from emulator.machine.decode import decode

        number = first // STRETCH
        if number == len(self._stretches):
            places = range(self.start + first, self.start + min(first + STRETCH, self.inner))
            body = self._kernel.body
            self._stretches.append(tuple(decode(self._kernel, body[at], at) for at in places))
        return self._stretches[number]

    @cached_property
    def finish(self) -> Step:
        """The step that ends it."""
        from emulator.machine.decode import decode_end

        end = self.start + self.length
        if self.inner == self.length:
            return _fall_through(end, len(self._kernel.body))
        return decode_end(self._kernel, self._kernel.body[end - 1], end - 1)


@dataclass(frozen=True)
class Location:
    """Where a variable lies: its space, and the offset of its first byte in it."""

    space: str
    offset: int
    size: int


class Kernel:
    """One entry of a module, made ready to run. Blocks are decoded when first reached."""

    def __init__(self, module: Module, function: Function, shared_align: int = 1) -> None:
        self.module = module
        self.function = function
        self.body = function.body
        for reg in function.registers:
            if reg.type not in BITS or BITS[reg.type] == 128:
                raise PtxError(f"registers of type .{reg.type} are not known here", function.line)
        if not self.body:
            raise PtxError(f"entry {function.name} has no instructions", function.line)
        self.register_bits = [BITS[reg.type] for reg in function.registers]
        self._blocks: dict[int, Block] = {}
        self.starts = frozenset(function.labels.values())
        """Instructions that may be jumped to."""
        self._place_variables(shared_align)

    # -- memory -----------------------------------------------------------------------------------------

    def _place_variables(self, shared_align: int) -> None:
        """Shared variables one after the other, extern ones (dynamic) behind all others, as ptxas does."""
        found: dict[str, Location] = {}
        variables = (*self.module.variables, *self.function.variables)
        shared = [v for v in variables if v.space == "shared"]
        widest = max((v.align for v in shared), default=16)
        widest = max(widest, 16)
        # A base that is a multiple of what was declared, and of no more: nothing else may be relied on.
        base = -(-1024 // widest) * widest
        self.shared_base = base + widest if base % (2 * widest) == 0 else base
        at = 0
        for v in shared:
            if not v.extern:
                at += -at % v.align
                found[v.name] = Location("shared", at, v.size)
                at += v.size
        self.static_shared_bytes = at
        dynamic = max((v.align for v in shared if v.extern), default=16)
        at += -at % max(dynamic, 16)
        if shared_align > 1:
            at += -(self.shared_base + at) % shared_align
        self.dynamic_start = at
        for v in shared:
            if v.extern:
                found[v.name] = Location("shared", at, 0)
        local = 0
        for v in variables:
            if v.space == "local":
                local += -local % v.align
                found[v.name] = Location("local", local, v.size)
                local += v.size
        self.local_bytes = local
        if local > _MOST_LOCAL:
            raise PtxError(f"{local} bytes of local memory a thread, over {_MOST_LOCAL}", self.function.line)
        for p in self.function.params:
            found[p.name] = Location("param", p.offset, p.size)
        self.variables = found
        self.module_data = [v for v in variables if v.space in ("const", "global")]

    def shared_bytes(self, dynamic: int) -> int:
        """Of a CTA that is given `dynamic` bytes at launch."""
        return self.dynamic_start + dynamic if dynamic else self.static_shared_bytes

    @cached_property
    def orders_threads(self) -> bool:
        """Whether some instruction but barriers can order threads: strong or atomic accesses."""
        return any(
            i.opcode in ("atom", "red")
            or (i.opcode in ("ld", "st") and not _ORDERING.isdisjoint(i.modifiers))
            for i in self.body
        )

    @cached_property
    def asynchronous(self) -> bool:
        """Whether it uses mbarriers, bulk copies or WGMMA."""
        return any(
            i.opcode in ("mbarrier", "wgmma")
            or (i.opcode == "cp" and ("bulk" in i.modifiers or "mbarrier" in i.modifiers))
            for i in self.body
        )

    @cached_property
    def warpgroup_registers(self) -> frozenset[int]:
        """Registers that a WGMMA reads or writes, and those that plain moves bring to or from them."""
        found = {
            item.index
            for i in self.body
            if i.opcode == "wgmma" and "mma_async" in i.modifiers
            for operand in i.operands[:2]
            if isinstance(operand, Vector)
            for item in operand.items
            if isinstance(item, Reg)
        }
        moves = [pair for i in self.body if (pair := plain_move(i)) is not None]
        count = -1
        while found and count != len(found):
            count = len(found)
            for pair in moves:
                if not found.isdisjoint(pair):
                    found.update(pair)
        return frozenset(found)

    @cached_property
    def reads_peers(self) -> bool:
        """Whether it may read the shared memory of other CTAs of its cluster."""
        return any(
            i.opcode in ("ld", "atom", "red", "cp")
            and "shared::cluster" in i.modifiers
            and (i.opcode != "cp" or "shared::cta" in i.modifiers)
            for i in self.body
        ) or any(i.opcode == "mapa" and "shared::cluster" not in i.modifiers for i in self.body)

    @cached_property
    def shared_granule(self) -> int:
        """Bytes of the narrowest access to shared memory."""
        return self._narrowest("shared")

    @cached_property
    def global_granule(self) -> int:
        """Bytes of the narrowest access to global memory."""
        return self._narrowest("global")

    def _narrowest(self, space: str) -> int:
        least = 16
        for i in self.body:
            names = [m.split("::")[0] for m in i.modifiers]
            if i.opcode in ("ld", "st", "atom", "red", "ldu"):
                spaces = [m for m in names if m in SPACES]
                if spaces and spaces[0] != space:
                    continue
                kind = i.modifiers[-1]
                width = BITS.get(kind, 8) // 8
                if "v2" in names or "v4" in names or "v8" in names:
                    width *= int(next(m for m in names if m in ("v2", "v4", "v8"))[1:])
                least = min(least, max(width, 1))
            elif i.opcode == "mbarrier":
                least = min(least, 8 if space == "shared" else 16)
            elif i.opcode == "cp" and "bulk" in names:
                pass
            elif i.opcode == "cp" and "async" in names and len(i.operands) >= 3:
                size = i.operands[2]
                least = min(least, size.value if isinstance(size, Imm) and size.value in (4, 8, 16) else 4)
            elif i.opcode == "wmma":
                least = min(least, 4 if i.modifiers[-1] in ("f32", "s32") else 2)
        return least

    # -- code -------------------------------------------------------------------------------------------

    def block(self, start: int) -> Block:
        """The block that begins at an instruction."""
        known = self._blocks.get(start)
        if known is None:
            known = self._blocks[start] = Block(self, start)
        return known

    # -- places -----------------------------------------------------------------------------------------

    def chain(self, site: int) -> list[Place]:
        """Source lines of an instruction, outermost (in the kernel itself) first."""
        place = self.body[site].place if 0 <= site < len(self.body) else None
        found: list[Place] = []
        while place is not None and len(found) < 64:
            found.append(place)
            place = place.inlined_at
        return found[::-1]

    def where(self, site: int) -> str:
        """An instruction's place for people: `gemm.cu:12 > tile.cuh:40`, or its PTX line."""
        chain = self.chain(site)
        if not chain:
            return f"PTX line {self.body[site].line}" if 0 <= site < len(self.body) else "an unknown place"
        names = [f"{p.file.rsplit('/', 1)[-1]}:{p.line}" for p in chain]
        if len(names) > 5:
            names[2:-2] = ["..."]
        return " > ".join(names)


def ends_block(i: Instruction) -> bool:
    """Whether the threads' way on is known only after this instruction."""
    if i.opcode in _WAITS:
        return not set(_WAITS[i.opcode]).isdisjoint(i.modifiers)
    return i.opcode in _ENDS and not (i.opcode == "bar" and "warp" in i.modifiers)


def plain_move(i: Instruction) -> tuple[int, int] | None:
    """(target, source) of a move between two registers of one width."""
    if i.opcode != "mov" or len(i.operands) != 2:
        return None
    target, source = i.operands
    if isinstance(target, Reg) and isinstance(source, Reg) and BITS[target.type] == BITS[source.type] > 1:
        return target.index, source.index
    return None


def _class_of(i: Instruction) -> str:
    last = i.modifiers[-1] if i.modifiers else ""
    return "float" if last in ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64") else "integer"


def _fall_through(at: int, end: int) -> Callable[[Wave], None]:
    if at >= end:
        from emulator.machine.decode import exit_threads

        return lambda w: exit_threads(w, end - 1)
    return lambda w: w.jump(at)


__all__ = ["BITS", "Address", "Block", "EmulatorError", "Kernel", "Location", "Reg", "Vector", "ends_block"]
