"""Which register, variable or label does a name mean at a place of a function?

Names live in nested scopes (`{ ... }`), as inline assembly makes them, often the same names again and
again. Every name that was already used in the function gets a suffix (`LAB$2`), so that names alone
identify what they name. Registers of a range (`%r<100>`) come into being when they are first used.
"""

from __future__ import annotations

from typing import TypeAlias

from emulator.errors import PtxError
from emulator.ptx.nodes import Label, Reg, Symbol, Vector

__all__ = ["Named", "Names", "Scope"]

Named: TypeAlias = Reg | Symbol | Vector

_MAX_REGISTERS = 1 << 20


class Scope:
    """One `{ ... }`: what it declares, inside `parent`."""

    __slots__ = ("labels", "names", "parent", "ranges")

    def __init__(self, parent: Scope | None) -> None:
        self.parent = parent
        self.names: dict[str, Named] = {}
        self.ranges: dict[str, tuple[int, str, int]] = {}  # prefix -> how many, type, vector length
        self.labels: dict[str, Label] = {}


class Names:
    """The names of one function. `taken`: names of the module, which no inner variable may get."""

    def __init__(self, taken: set[str]) -> None:
        self.registers: list[Reg] = []
        self.scope = Scope(None)
        self._used: set[str] = set(taken)
        self._suffix: dict[str, int] = {}

    def open(self) -> None:
        """Enter a `{`."""
        self.scope = Scope(self.scope)

    def close(self) -> None:
        """Leave by a `}`."""
        assert self.scope.parent is not None
        self.scope = self.scope.parent

    def unique(self, name: str) -> str:
        """`name`, or with a suffix if it is used already; from now on it is used."""
        if name not in self._used:
            self._used.add(name)
            return name
        count = self._suffix.get(name, 1)
        while True:
            count += 1
            candidate = f"{name}${count}"
            if candidate not in self._used:
                self._suffix[name] = count
                self._used.add(candidate)
                return candidate

    def _new(self, name: str, type_: str, vector: int, line: int) -> Named:
        if len(self.registers) + vector > _MAX_REGISTERS:
            raise PtxError(f"more than {_MAX_REGISTERS} registers in a function", line)
        if vector == 1:
            register = Reg(self.unique(name), type_, len(self.registers))
            self.registers.append(register)
            return register
        parts: list[Reg] = []
        for component in "xyzw"[:vector]:
            parts.append(Reg(self.unique(f"{name}${component}"), type_, len(self.registers)))
            self.registers.append(parts[-1])
        return Vector(tuple(parts))

    def declare_register(self, name: str, type_: str, vector: int, line: int) -> None:
        """`.reg .type name`."""
        if name in self.scope.names:
            raise PtxError(f"'{name}' is declared twice", line)
        self.scope.names[name] = self._new(name, type_, vector, line)

    def declare_range(self, prefix: str, count: int, type_: str, vector: int, line: int) -> None:
        """`.reg .type prefix<count>`."""
        if prefix in self.scope.ranges:
            raise PtxError(f"'{prefix}<{count}>' is declared twice", line)
        self.scope.ranges[prefix] = (count, type_, vector)

    def declare_symbol(self, name: str, line: int) -> Symbol:
        """A variable or parameter called `name`; its symbol has the unique name."""
        if name in self.scope.names:
            raise PtxError(f"'{name}' is declared twice", line)
        symbol = Symbol(self.unique(name))
        self.scope.names[name] = symbol
        return symbol

    def declare_label(self, name: str, line: int) -> Label:
        """`name:`."""
        if name in self.scope.labels:
            raise PtxError(f"the label '{name}' is set twice", line)
        label = Label(self.unique(name))
        self.scope.labels[name] = label
        return label

    def find(self, name: str, line: int) -> Named | None:
        """The register or variable that `name` means here, None if it is neither."""
        scope: Scope | None = self.scope
        prefix = name.rstrip("0123456789")
        digits = name[len(prefix) :]
        while scope is not None:
            found = scope.names.get(name)
            if found is not None:
                return found
            if digits:
                # "%rd12" may be declared as %rd<20> or, less usually, as %rd1<9>.
                for cut in range(len(digits)) if len(digits) < 10 else ():
                    declared = scope.ranges.get(prefix + digits[:cut])
                    if declared is None:
                        continue
                    number = digits[cut:]
                    if (number[0] != "0" or number == "0") and int(number) < declared[0]:
                        found = self._new(name, declared[1], declared[2], line)
                        scope.names[name] = found
                        return found
            scope = scope.parent
        return None

    def find_label(self, name: str, scope: Scope) -> Label | None:
        """The label that `name` means in `scope`, once all labels are known."""
        inner: Scope | None = scope
        while inner is not None:
            found = inner.labels.get(name)
            if found is not None:
                return found
            inner = inner.parent
        return None
