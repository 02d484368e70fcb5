"""How is the body of a function read?"""

from __future__ import annotations

from emulator.errors import PtxError
from emulator.ptx.constants import count, integer
from emulator.ptx.declarations import param_list, variables
from emulator.ptx.nodes import (
    Arguments,
    Instruction,
    Label,
    Operand,
    Place,
    Prototype,
    Reg,
    Symbol,
    Variable,
)
from emulator.ptx.operands import Operands, Pending, Raw
from emulator.ptx.scopes import Names
from emulator.ptx.tokens import Cursor
from emulator.ptx.words import OPCODES, TYPE_BYTES

__all__ = ["Body"]

_MAX_SCOPES = 1000
_MAX_INLINED = 32
_VECTORS = {".v2": 2, ".v4": 4}


class Body:
    """One function's body: call `read`, then take what it found. `symbols`: names of the module."""

    def __init__(self, cursor: Cursor, names: Names, symbols: set[str], files: dict[int, str]) -> None:
        self.cursor = cursor
        self.names = names
        self.operands = Operands(cursor, names, symbols)
        self.symbols = symbols
        self.files = files
        self.variables: list[Variable] = []
        self.labels: dict[str, int] = {}
        self.branch_targets: dict[str, tuple[str, ...]] = {}
        self.call_targets: dict[str, tuple[str, ...]] = {}
        self.prototypes: dict[str, Prototype] = {}
        self.pragmas: list[str] = []
        self.instructions: list[Instruction] = []
        self._pending: list[int] = []
        self._raw: dict[int, list[Raw]] = {}
        self._targets: list[tuple[str, list[Pending]]] = []
        self._opcodes: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._places: dict[tuple[int, int, int], Place] = {}
        self._place: Place | None = None

    def read(self) -> None:
        """From the `{` to its `}`."""
        cursor = self.cursor
        words = cursor.words
        cursor.expect("{")
        depth = 1
        while True:
            word = words[cursor.position]
            first = word[:1]
            if first == "@":
                self._guarded()
            elif first == "{":
                cursor.position += 1
                depth += 1
                if depth > _MAX_SCOPES:
                    cursor.fail(f"more than {_MAX_SCOPES} nested blocks")
                self.names.open()
            elif first == "}":
                cursor.position += 1
                depth -= 1
                if depth == 0:
                    break
                self.names.close()
            elif first == ";":
                cursor.position += 1
            elif first == ".":
                self._directive(word)
            elif not first:
                cursor.fail("the function's '}' is missing")
            elif words[cursor.position + 1] == ":":
                self._label()
            else:
                self._instruction(None, False)
        self._settle()

    def _guarded(self) -> None:
        cursor = self.cursor
        cursor.position += 1
        negated = cursor.accept("!")
        self._instruction(self.operands.register(), negated)

    def _instruction(self, guard: Reg | None, negated: bool) -> None:
        cursor = self.cursor
        words = cursor.words
        position = cursor.position
        line = cursor.lines[position]
        word = words[position]
        split = self._opcodes.get(word)
        if split is None:
            opcode, *modifiers = word.split(".")
            if opcode not in OPCODES:
                cursor.fail(f"unknown instruction {cursor.shown()}")
            split = opcode, tuple(modifiers)
            self._opcodes[word] = split
        opcode, words_after = split
        position += 1
        while words[position][:1] == ".":  # modifiers set apart by a blank
            words_after = (*words_after, words[position][1:])
            position += 1
        cursor.position = position
        operands: list[Raw] = []
        if opcode == "call":
            operands = self._call()
        elif words[position] != ";":
            read = self.operands.operand
            operands.append(read())
            while words[cursor.position] == ",":
                cursor.position += 1
                operands.append(read())
        if words[cursor.position] != ";":
            cursor.fail(f"expected ',' or ';', found {cursor.shown()}")
        cursor.position += 1
        known: list[Operand] = []
        for operand in operands:
            if isinstance(operand, Pending):
                self._raw[len(self.instructions)] = operands
                self._pending.append(len(self.instructions))
                known = []
                break
            known.append(operand)
        self.instructions.append(
            Instruction(opcode, words_after, tuple(known), guard, negated, self._place, line)
        )

    def _call(self) -> list[Raw]:
        """`call (results), target, (parameters), prototype`, where only the target has to be there."""
        cursor = self.cursor
        results = Arguments(())
        params = Arguments(())
        if cursor.word == "(":
            results = self.operands.arguments()
            cursor.expect(",")
        target = self.operands.operand()
        extra: list[Raw] = []
        if cursor.word == "," and cursor.words[cursor.position + 1] == "(":
            cursor.take()
            params = self.operands.arguments()
        if cursor.accept(","):
            line = cursor.line
            extra.append(Pending(cursor.identifier("a prototype"), self.names.scope, line))
        return [results, target, params, *extra]

    def _label(self) -> None:
        cursor = self.cursor
        line = cursor.line
        name = cursor.identifier("a label")
        cursor.expect(":")
        label = self.names.declare_label(name, line)
        directive = cursor.word
        if directive in (".branchtargets", ".calltargets"):
            cursor.take()
            found: list[Pending] = []
            while True:
                line = cursor.line
                found.append(Pending(cursor.identifier("a target"), self.names.scope, line))
                if cursor.accept(";"):
                    break
                cursor.expect(",")
            if directive == ".branchtargets":
                self._targets.append((label.name, found))
            else:
                for target in found:
                    if target.name not in self.symbols:
                        raise PtxError(f"the function '{target.name}' is not declared", target.line)
                self.call_targets[label.name] = tuple(t.name for t in found)
        elif directive == ".callprototype":
            cursor.take()
            results = param_list(cursor) if cursor.word == "(" else ()
            cursor.expect("_")
            params = param_list(cursor) if cursor.word == "(" else ()
            cursor.accept(".noreturn")
            cursor.expect(";")
            self.prototypes[label.name] = Prototype(results, params)
        else:
            self.labels[label.name] = len(self.instructions)

    def _directive(self, word: str) -> None:
        cursor = self.cursor
        match word:
            case ".loc":
                self._loc()
            case ".reg":
                cursor.take()
                self._registers()
            case ".local" | ".shared" | ".param" | ".const" | ".global":
                cursor.take()
                for variable in variables(cursor, word[1:], self._resolve):
                    symbol = self.names.declare_symbol(variable.name, variable.line)
                    self.variables.append(_renamed(variable, symbol.name))
            case ".pragma":
                cursor.take()
                self.pragmas += pragma(cursor)
            case _:
                cursor.fail(f"unknown directive {cursor.shown()}")

    def _resolve(self, name: str, line: int) -> Symbol:
        found = self.names.find(name, line)
        if isinstance(found, Symbol):
            return found
        if name not in self.symbols:
            raise PtxError(f"the variable '{name}' is not declared", line)
        return Symbol(name)

    def _registers(self) -> None:
        cursor = self.cursor
        vector = 1
        if cursor.word in _VECTORS:
            vector = _VECTORS[cursor.take()]
        type_ = cursor.word[1:]
        if cursor.word[:1] != "." or (type_ != "pred" and type_ not in TYPE_BYTES):
            cursor.fail(f"expected the type of a register, found {cursor.shown()}")
        cursor.take()
        while True:
            line = cursor.line
            name = cursor.identifier("the name of a register")
            if cursor.accept("<"):
                number = count(cursor, "the number of registers", 0, 1 << 31)
                cursor.expect(">")
                self.names.declare_range(name, number, type_, vector, line)
            else:
                self.names.declare_register(name, type_, vector, line)
            if cursor.accept(";"):
                return
            cursor.expect(",")

    def _loc(self) -> None:
        """`.loc file line column[, function_name label[+n]][, inlined_at file line column]` (11.5.4)."""
        cursor = self.cursor
        cursor.position += 1
        key = self._position()
        inlined: Place | None = None
        while cursor.accept(","):
            if cursor.accept("function_name"):
                cursor.accept(".debug_str") or cursor.identifier("a label of .debug_str")
                if cursor.accept("+"):
                    integer(cursor, "an offset")
            else:
                cursor.expect("inlined_at")
                at = self._position()
                inlined = self._places.get(at)
                if inlined is None:
                    inlined = Place(self.files[at[0]], at[1], at[2])
        depth = 0
        outer = inlined
        while outer is not None:
            depth += 1
            outer = outer.inlined_at
        if depth > _MAX_INLINED:  # a chain that runs in a circle; the innermost line says enough
            inlined = None
        self._place = Place(self.files[key[0]], key[1], key[2], inlined)
        self._places[key] = self._place

    def _position(self) -> tuple[int, int, int]:
        cursor = self.cursor
        file = integer(cursor, "a file number")
        if file not in self.files:
            cursor.fail(f"there is no .file {file}")
        return file, integer(cursor, "a line number"), integer(cursor, "a column")

    def _settle(self) -> None:
        """Give pending names their meaning, now that all labels are known."""
        for index in self._pending:
            instruction = self.instructions[index]
            operands = tuple(self._known(raw) for raw in self._raw[index])
            self.instructions[index] = Instruction(
                instruction.opcode,
                instruction.modifiers,
                operands,
                instruction.guard,
                instruction.negated,
                instruction.place,
                instruction.line,
            )
        for name, targets in self._targets:
            labels = [self._known(target) for target in targets]
            for target, label in zip(targets, labels, strict=True):
                if not isinstance(label, Label) or label.name not in self.labels:
                    raise PtxError(f"'{target.name}' is no label", target.line)
            self.branch_targets[name] = tuple(label.name for label in labels if isinstance(label, Label))

    def _known(self, raw: Raw) -> Operand:
        if not isinstance(raw, Pending):
            return raw
        label = self.names.find_label(raw.name, raw.scope)
        if label is not None:
            if label.name in self.prototypes or label.name in self.call_targets:
                return Symbol(label.name)
            return label
        if raw.name in self.symbols:
            return Symbol(raw.name)
        raise PtxError(f"'{raw.name[:60]}' is not declared", raw.line)


def pragma(cursor: Cursor) -> list[str]:
    """The strings of a `.pragma` after that word, up to and with its `;`."""
    found: list[str] = []
    while True:
        if cursor.word[:1] != '"' or len(cursor.word) < 2 or cursor.word[-1] != '"':
            cursor.fail(f"expected a string, found {cursor.shown()}")
        found.append(cursor.take()[1:-1])
        if cursor.accept(";"):
            return found
        cursor.expect(",")


def _renamed(variable: Variable, name: str) -> Variable:
    return Variable(
        name,
        variable.space,
        variable.type,
        variable.align,
        variable.shape,
        variable.size,
        variable.data,
        variable.relocations,
        variable.extern,
        variable.line,
    )
