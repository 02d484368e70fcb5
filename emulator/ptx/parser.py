"""How does a PTX text become a Module?

    module = parse(text)     # PtxError with the line for anything that is not understood

Nothing is skipped but the debug sections.

PTX ISA 9.1, chapters 4, 5 and 11. Directives of linking (.visible, .weak, .extern, .common) are kept in
`linkage`.
"""

from __future__ import annotations

import re

from emulator.errors import PtxError
from emulator.ptx.body import Body, pragma
from emulator.ptx.constants import integer
from emulator.ptx.declarations import param_list, variables
from emulator.ptx.nodes import Function, Module, Param, Symbol, Variable
from emulator.ptx.scopes import Names
from emulator.ptx.tokens import Cursor, tokenize

__all__ = ["parse"]

_LINKAGE = (".visible", ".extern", ".weak", ".common")
_DIMENSIONS = (".maxntid", ".reqntid", ".reqnctapercluster")
_COUNTS = (
    ".maxnreg",
    ".minnctapersm",
    ".maxnctapersm",
    ".maxclusterrank",
    ".abi_preserve",
    ".abi_preserve_control",
)
_FLAGS = (".explicitcluster", ".blocksareclusters", ".noreturn")
_TARGET = re.compile(r"sm_\d+[af]?|compute_\d+[af]?|texmode_unified|texmode_independent|debug|map_f64_to_f32")
_SECTION = re.compile(r"\.debug_\w+|\.nv_debug\w*", re.ASCII)


def parse(text: str) -> Module:
    """The module that `text` is. PtxError, with the line, where it is not PTX that the emulator knows."""
    return _Parser(tokenize(text)).module()


class _Parser:
    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.version: tuple[int, int] | None = None
        self.target: tuple[str, ...] = ()
        self.address_size = 64
        self.files: dict[int, str] = {}
        self.variables: list[Variable] = []
        self.functions: list[Function] = []
        self.defined: set[str] = set()
        self.aliases: dict[str, str] = {}
        self.symbols: set[str] = set()

    def module(self) -> Module:
        self._files()
        cursor = self.cursor
        if cursor.word != ".version":
            cursor.fail(f"expected .version, found {cursor.shown()}")
        while cursor.word:
            self._statement()
        assert self.version is not None
        if not self.target:
            cursor.fail("there is no .target")
        return Module(
            self.version,
            self.target,
            self.address_size,
            self.files,
            tuple(self.variables),
            tuple(self.functions),
            self.aliases,
        )

    def _files(self) -> None:
        """Numbers and names of `.file`, which stand at the end of the text but are needed before."""
        words = self.cursor.words
        at = -1
        while True:
            try:
                at = words.index(".file", at + 1)
            except ValueError:
                return
            number, name, line = words[at + 1], words[at + 2], self.cursor.lines[at]
            if not number.isascii() or not number.isdigit() or len(number) > 9:
                raise PtxError(f"expected the number of a file, found '{number[:60]}'", line)
            if len(name) < 2 or name[0] != '"' or name[-1] != '"':
                raise PtxError(f"expected the name of a file, found '{name[:60]}'", line)
            self.files[int(number)] = name[1:-1]

    def _statement(self) -> None:
        cursor = self.cursor
        word = cursor.word
        match word:
            case ".version":
                self._version()
            case ".target":
                self._target()
            case ".address_size":
                cursor.take()
                line = cursor.line
                self.address_size = integer(cursor, ".address_size", 32, 64)
                if self.address_size != 64:
                    raise PtxError(f".address_size {self.address_size} is not supported, 64 is", line)
            case ".file":
                cursor.position += 3
                while cursor.accept(","):  # time stamp and size
                    integer(cursor, "a part of .file")
            case ".section":
                self._section()
            case ".pragma":
                cursor.take()
                pragma(cursor)
            case ".alias":
                self._alias()
            case ".loc":
                cursor.fail("a .loc outside a function")
            case ";":
                cursor.take()
            case _:
                self._declaration()

    def _version(self) -> None:
        cursor = self.cursor
        cursor.take()
        match = re.fullmatch(r"([1-9])\.([0-9])", cursor.word)
        if match is None:
            cursor.fail(f"unknown .version {cursor.shown()}, 1.0 to 9.9 are known")
        if self.version is not None:
            cursor.fail("a second .version")
        cursor.take()
        self.version = int(match[1]), int(match[2])

    def _target(self) -> None:
        cursor = self.cursor
        cursor.take()
        found: list[str] = []
        while True:
            if not _TARGET.fullmatch(cursor.word):
                cursor.fail(f"unknown .target {cursor.shown()}")
            found.append(cursor.take())
            if not cursor.accept(","):
                break
        self.target = (*self.target, *found)

    def _section(self) -> None:
        """Debug information, skipped as a whole."""
        cursor = self.cursor
        cursor.take()
        if not _SECTION.fullmatch(cursor.word):
            cursor.fail(f"unknown section {cursor.shown()}")
        cursor.take()
        cursor.expect("{")
        depth = 1
        while depth:
            word = cursor.take()
            depth += (word == "{") - (word == "}")

    def _alias(self) -> None:
        cursor = self.cursor
        cursor.take()
        name = cursor.identifier("an alias")
        cursor.expect(",")
        line = cursor.line
        target = cursor.identifier("a function")
        cursor.expect(";")
        if target not in self.symbols:
            raise PtxError(f"the function '{target}' is not declared", line)
        self.aliases[name] = target
        self.symbols.add(name)

    def _declaration(self) -> None:
        cursor = self.cursor
        linkage = ""
        if cursor.word in _LINKAGE:
            linkage = cursor.take()[1:]
        word = cursor.word
        if word in (".global", ".const", ".shared"):
            cursor.take()
            if word == ".const" and cursor.word == "[":
                cursor.fail("banked constants (.const[n]) are not supported")
            found = variables(cursor, word[1:], self._resolve, extern=linkage == "extern")
            self.variables += found
            self.symbols |= {variable.name for variable in found}
        elif word == ".entry" or word == ".func":
            cursor.take()
            self._function(word == ".entry", linkage)
        else:
            cursor.fail(f"unknown directive {cursor.shown()}")

    def _resolve(self, name: str, line: int) -> Symbol:
        if name not in self.symbols:
            raise PtxError(f"the variable '{name}' is not declared", line)
        return Symbol(name)

    def _function(self, is_entry: bool, linkage: str) -> None:
        cursor = self.cursor
        line = cursor.line
        directives: dict[str, tuple[int | str, ...]] = {}
        results: tuple[Param, ...] = ()
        self._attributes(directives)
        if not is_entry and cursor.word == "(":
            results = param_list(cursor)
        name = cursor.identifier("the name of a function")
        params = param_list(cursor) if cursor.word == "(" else ()
        self._attributes(directives)
        self.symbols.add(name)
        if cursor.accept(";"):
            declared = Function(
                name, is_entry, results, params, directives, (), (), (), {}, {}, {}, {}, False, linkage, line
            )
            self.functions.append(declared)
            return
        if name in self.defined:
            raise PtxError(f"the function '{name}' is defined twice", line)
        names = Names(self.symbols)
        for param in (*results, *params):
            if param.name:
                names.declare_symbol(param.name, line)
        # The parameters' scope is outside that of the body.
        names.open()
        body = Body(cursor, names, self.symbols, self.files)
        body.read()
        if body.pragmas:
            directives["pragma"] = (*directives.get("pragma", ()), *body.pragmas)
        self.defined.add(name)
        self.functions.append(
            Function(
                name,
                is_entry,
                results,
                params,
                directives,
                tuple(names.registers),
                tuple(body.variables),
                tuple(body.instructions),
                body.labels,
                body.branch_targets,
                body.call_targets,
                body.prototypes,
                True,
                linkage,
                line,
            )
        )

    def _attributes(self, directives: dict[str, tuple[int | str, ...]]) -> None:
        """Performance directives between a function's head and its body."""
        cursor = self.cursor
        while cursor.word[:1] == ".":
            word = cursor.word
            if word in _DIMENSIONS:
                cursor.take()
                values = [integer(cursor, word, 1, 1 << 31)]
                while len(values) < 3 and cursor.accept(","):
                    values.append(integer(cursor, word, 1, 1 << 31))
                directives[word[1:]] = (*values, *[1] * (3 - len(values)))
            elif word in _COUNTS:
                cursor.take()
                directives[word[1:]] = (integer(cursor, word, 0, 1 << 31),)
            elif word in _FLAGS:
                cursor.take()
                directives[word[1:]] = ()
            elif word == ".pragma":
                cursor.take()
                directives["pragma"] = (*directives.get("pragma", ()), *pragma(cursor))
            elif word == ".attribute":
                cursor.fail("a function with .attribute is not supported")
            else:
                cursor.fail(f"unknown directive {cursor.shown()}")
