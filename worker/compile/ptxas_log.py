"""What does the assembler's log say of each kernel, and does it say that the kernel is no good?

The lines of `--ptxas-options=-v`, as NVRTC 12.9 and 13.5 write them:
    ptxas info    : 0 bytes gmem, 8 bytes cmem[4]
    ptxas info    : Compiling entry function 'gemm' for 'sm_80'
    ptxas info    : Function properties for gemm
    ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
    ptxas info    : Used 238 registers, used 1 barriers, 1024 bytes smem, 416 bytes cmem[0]
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace

SERIOUS = frozenset({"C7504", "C7508", "C7509", "C7510", "C7511", "C7514", "C7515", "C7602"})
"""Advice under which a kernel runs, and runs badly: setmaxnreg that is ignored, asynchronous matrix
instructions that are serialised. The schedule is refused; the line itself says why."""


@dataclass(frozen=True)
class EntryResources:
    """One kernel's share of the machine, as ptxas reports it; all but registers and barriers in bytes."""

    registers: int = 0
    barriers: int = 0
    stack_bytes: int = 0
    spill_stores_bytes: int = 0
    spill_loads_bytes: int = 0
    static_smem_bytes: int = 0
    constant_bytes: int = 0
    """Of all banks: parameters, literals, `__constant__`."""
    local_bytes: int = 0

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class LogReport:
    """The log as data."""

    entries: dict[str, EntryResources]
    functions: dict[str, EntryResources]
    """What kernels call and the compiler did not inline: stack and spills."""
    advice: tuple[tuple[str, str], ...]
    """(code, line) of each advisory, once."""

    @property
    def serious(self) -> tuple[tuple[str, str], ...]:
        """The advice under which a schedule is refused."""
        return tuple(pair for pair in self.advice if pair[0] in SERIOUS)

    @property
    def spill_bytes(self) -> int:
        """Spill stores and loads of everything that was assembled."""
        found = [*self.entries.values(), *self.functions.values()]
        return sum(each.spill_stores_bytes + each.spill_loads_bytes for each in found)


_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"\bUsed (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SIZES = re.compile(r"(\d+)(?:\+\d+)? bytes (smem|lmem|cmem)(\[\d+\])?")
_ADVICE = re.compile(r"\((C\d{4})\)")
_TIME = re.compile(r"Compile time = ")


def tidy(log: str) -> str:
    """The log without what differs from run to run, so that a rebuilt artifact has the log it had."""
    kept = [line.rstrip() for line in log.splitlines() if not _TIME.search(line)]
    return "\n".join(kept).strip("\n") + "\n" if any(kept) else ""


def parse(log: str) -> LogReport:
    """Read every line that is known; others are left to a person."""
    entries: dict[str, EntryResources] = {}
    functions: dict[str, EntryResources] = {}
    advice: dict[str, str] = {}
    entry = properties = ""
    for line in log.splitlines():
        if match := _ADVICE.search(line):
            advice.setdefault(match[1], line.strip())
        elif match := _ENTRY.search(line):
            entry = match[1]
            entries.setdefault(entry, EntryResources())
        elif match := _PROPERTIES.search(line):
            properties = match[1]
        elif match := _FRAME.search(line):
            where = entries if properties in entries else functions
            stack, stores, loads = (int(number) for number in match.groups())
            known = where.get(properties, EntryResources())
            where[properties] = replace(
                known, stack_bytes=stack, spill_stores_bytes=stores, spill_loads_bytes=loads
            )
        elif (match := _USED.search(line)) and entry:
            barriers = _BARRIERS.search(line)
            sizes = {"smem": 0, "lmem": 0, "cmem": 0}
            for number, kind, _bank in _SIZES.findall(line):
                sizes[kind] += int(number)
            entries[entry] = replace(
                entries[entry],
                registers=int(match[1]),
                barriers=int(barriers[1]) if barriers else 0,
                static_smem_bytes=sizes["smem"],
                constant_bytes=sizes["cmem"],
                local_bytes=sizes["lmem"],
            )
    return LogReport(entries, functions, tuple(advice.items()))
