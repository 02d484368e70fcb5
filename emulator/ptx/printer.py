"""How does a Module become PTX text again?

For messages, and for the proof that parsing loses nothing: `parse(print_module(m)) == m`. Inner scopes are
gone, as names are unique after parsing.
"""

from __future__ import annotations

from collections.abc import Mapping

from emulator.ptx.nodes import (
    Address,
    Arguments,
    Function,
    Imm,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Param,
    Place,
    Reg,
    Relocation,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)
from emulator.ptx.words import TYPE_BYTES

__all__ = ["print_instruction", "print_module", "print_operand"]


def print_module(module: Module) -> str:
    """The text of a module. Functions and variables each come in their order."""
    out = [
        f".version {module.version[0]}.{module.version[1]}",
        f".target {', '.join(module.target)}",
        f".address_size {module.address_size}",
    ]
    out += [f'.file {number} "{name}"' for number, name in module.files.items()]
    numbers = {name: number for number, name in module.files.items()}
    # An initialiser may name a function, so a variable comes after what it names and before what may name it.
    waiting = list(reversed(module.variables))
    known = {v.name for v in module.variables}
    for function in (*module.functions, None):
        while waiting and (function is None or all(r.symbol.name in known for r in waiting[-1].relocations)):
            out.append(_variable(waiting.pop()))
        if function is not None:
            out.append(_function(function, numbers))
            known.add(function.name)
    out += [f".alias {name}, {target};" for name, target in module.aliases.items()]
    return "\n".join(out) + "\n"


def print_instruction(instruction: Instruction) -> str:
    """One instruction with its guard, without its place."""
    guard = ""
    if instruction.guard is not None:
        guard = f"@{'!' if instruction.negated else ''}{instruction.guard.name} "
    name = ".".join((instruction.opcode, *instruction.modifiers))
    operands = [print_operand(o) for o in instruction.operands]
    if instruction.opcode == "call":
        operands = [o for i, o in enumerate(operands) if o != "()" or i not in (0, 2)]
    return f"{guard}{name} {', '.join(operands)};".replace(" ;", ";")


def print_operand(operand: Operand) -> str:
    """One operand."""
    match operand:
        case Reg() | Special() | Label():
            return operand.name
        case Imm():
            if operand.kind == "int":
                return f"{operand.value}U" if operand.value >= 1 << 63 else str(operand.value)
            return f"0f{operand.value:08X}" if operand.kind == "f32" else f"0d{operand.value:016X}"
        case Symbol():
            return operand.name + (f"+{operand.offset}" if operand.offset else "")
        case Sink():
            return "_"
        case Negated():
            return "!" + operand.reg.name
        case Vector():
            return "{" + ", ".join(print_operand(o) for o in operand.items) + "}"
        case Pair():
            return f"{print_operand(operand.first)}|{print_operand(operand.second)}"
        case Address():
            base = str(operand.base) if isinstance(operand.base, int) else print_operand(operand.base)
            offset = f"+{operand.offset}" if operand.offset else ""
            coords = f", {print_operand(operand.coords)}" if operand.coords is not None else ""
            return f"[{base}{offset}{coords}]"
        case Arguments():
            return "(" + ", ".join(print_operand(o) for o in operand.items) + ")"


def _param(param: Param) -> str:
    pointer = ""
    if param.pointer is not None:
        space = f".{param.pointer} " if param.pointer != "generic" else ""
        pointer = f".ptr {space}" + (f".align {param.pointer_align} " if param.pointer_align else "")
    shape = "".join(f"[{n}]" for n in param.shape)
    return f".param .align {param.align} .{param.type} {pointer}{param.name or '_'}{shape}"


def _params(params: tuple[Param, ...]) -> str:
    return "(" + ", ".join(_param(p) for p in params) + ")"


def _head(function: Function) -> str:
    linkage = f".{function.linkage} " if function.linkage else ""
    kind = ".entry" if function.is_entry else ".func"
    results = _params(function.results) + " " if function.results else ""
    out = f"{linkage}{kind} {results}{function.name}{_params(function.params)}"
    for name, values in function.directives.items():
        if name == "pragma":
            out += "\n.pragma " + ", ".join(f'"{v}"' for v in values) + ";"
        else:
            out += f"\n.{name} " + ", ".join(str(v) for v in values)
    return out


def _variable(variable: Variable) -> str:
    shape = "".join(f"[{n or ''}]" for n in variable.shape)
    extern = ".extern " if variable.extern else ""
    head = f"{extern}.{variable.space} .align {variable.align} .{variable.type} {variable.name}{shape}"
    if variable.data is None:
        return head + ";"
    return f"{head} = {_initialiser(variable, variable.shape, 0)};"


def _initialiser(variable: Variable, shape: tuple[int, ...], offset: int) -> str:
    assert variable.data is not None
    size = TYPE_BYTES[variable.type]
    if not shape:
        for relocation in variable.relocations:
            if relocation.offset == offset:
                return _relocation(relocation)
        bits = int.from_bytes(variable.data[offset : offset + size], "little")
        if variable.type in ("f32", "f64"):
            return f"0f{bits:08X}" if variable.type == "f32" else f"0d{bits:016X}"
        return f"{bits}U"
    row = size
    for extent in shape[1:]:
        row *= extent
    rows = min(shape[0], -(-(len(variable.data) - offset) // row) if row else 0)
    inner = [_initialiser(variable, shape[1:], offset + i * row) for i in range(rows)]
    return "{" + ", ".join(inner) + "}"


def _relocation(relocation: Relocation) -> str:
    text = relocation.symbol.name
    if relocation.generic:
        text = f"generic({text})"
    if relocation.symbol.offset:
        text += f"+{relocation.symbol.offset}"
    if relocation.size == 1:
        text = f"{0xFF << relocation.shift:#x}({text})"
    return text


def _function(function: Function, numbers: Mapping[str, int]) -> str:
    out = [_head(function)]
    if not function.defined:
        return out[0] + ";"
    out.append("{")
    out += [f".reg .{r.type} {r.name};" for r in function.registers]
    out += [_variable(v) for v in function.variables]
    for name, proto in function.prototypes.items():
        results = _params(proto.results) + " " if proto.results else ""
        out.append(f"{name}: .callprototype {results}_ {_params(proto.params)};")
    out += [f"{n}: .branchtargets {', '.join(t)};" for n, t in function.branch_targets.items()]
    out += [f"{n}: .calltargets {', '.join(t)};" for n, t in function.call_targets.items()]
    at: dict[int, list[str]] = {}
    for label, index in function.labels.items():
        at.setdefault(index, []).append(label)
    place: Place | None = None
    for index, instruction in enumerate(function.body):
        if instruction.place is not None and instruction.place != place:
            place = instruction.place
            out += _loc(place, numbers)
        out += [f"{label}:" for label in at.get(index, ())]
        out.append(print_instruction(instruction))
    out += [f"{label}:" for label in at.get(len(function.body), ())]
    out.append("}")
    return "\n".join(out)


def _loc(place: Place, numbers: Mapping[str, int]) -> list[str]:
    """The place with the chain it is inlined into, outermost first, as `.loc` wants it."""
    chain: list[Place] = [place]
    while chain[-1].inlined_at is not None:
        chain.append(chain[-1].inlined_at)
    out: list[str] = []
    for inner in reversed(chain):
        line = f".loc {numbers[inner.file]} {inner.line} {inner.column}"
        outer = inner.inlined_at
        if outer is not None:
            line += f", function_name _debug, inlined_at {numbers[outer.file]} {outer.line} {outer.column}"
        out.append(line)
    return out
