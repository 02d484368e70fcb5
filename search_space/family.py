"""What is a family: one kernel template with its parameters, legality, cost model and planner?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rooftile.plan import LaunchPlan
from rooftile.problem import Problem, sha256_key

from search_space.schedule import GROUPS, Schedule, Value
from search_space.violation import Violation

if TYPE_CHECKING:
    from search_space.device import Device


@dataclass(frozen=True)
class Parameter:
    """One named choice of a schedule. `choices` are in their natural order: neighbours in the list are
    neighbours in the search. `left_out`: values that public kernels have and this space does not, each with
    the reason."""

    name: str
    group: str
    choices: tuple[Value, ...]
    doc: str = ""
    left_out: tuple[tuple[Value, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(self.choices))
        if self.group not in GROUPS:
            raise ValueError(f"{self.name}: group {self.group!r} is not one of {', '.join(GROUPS)}")
        # By type too: 1 == True in Python, but not in JSON.
        if not self.choices or len({(type(c), c) for c in self.choices}) != len(self.choices):
            raise ValueError(f"{self.name}: choices must be there and differ")

    def why_left_out(self, value: Value) -> str:
        """The reason, where `value` is left out by name; else nothing."""
        return next((why for v, why in self.left_out if (type(v), v) == (type(value), value)), "")

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this parameter."""
        return {"name": self.name, "group": self.group, "choices": list(self.choices), "doc": self.doc}


@dataclass(frozen=True)
class Estimate:
    """What the cost model expects, and why."""

    time_us: float
    bound: str
    """What would have to be faster first."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """Microseconds by what they go to; together they are the time."""
    demands: Mapping[str, float] = field(default_factory=dict)
    """Microseconds that each unit (tensor cores, memory...) would take with nothing else in its way."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this estimate."""
        return {
            "time_us": self.time_us,
            "bound": self.bound,
            "terms": dict(self.terms),
            "demands": dict(self.demands),
        }


@dataclass(frozen=True)
class SharedArea:
    """A named area of a block's dynamic shared memory: `stages` pieces of `stage_bytes`, one after the
    other. `offset_bytes` counts from the first address that is a multiple of `align`."""

    name: str
    offset_bytes: int
    stage_bytes: int
    stages: int = 1
    align: int = 1


@dataclass(frozen=True)
class BuildSpec:
    """What the compiler is asked for. Holds no sizes of the problem: one artifact serves a sweep."""

    source: str
    """Path under kernels/, such as x86/gemm.c; its headers are found in kernels/x86/include."""
    arch: str
    defines: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    entries: tuple[str, ...] = ("run",)

    def __post_init__(self) -> None:
        defines = tuple(sorted((str(name), str(value)) for name, value in self.defines))
        object.__setattr__(self, "defines", defines)
        object.__setattr__(self, "flags", tuple(self.flags))
        object.__setattr__(self, "entries", tuple(self.entries))

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this recipe."""
        return {
            "source": self.source,
            "arch": self.arch,
            "defines": [list(pair) for pair in self.defines],
            "flags": list(self.flags),
            "entries": list(self.entries),
        }

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> BuildSpec:
        """The recipe that `to_json` wrote."""
        return cls(
            source=str(obj["source"]),
            arch=str(obj["arch"]),
            defines=tuple((str(name), str(value)) for name, value in obj["defines"]),
            flags=tuple(str(f) for f in obj["flags"]),
            entries=tuple(str(e) for e in obj["entries"]),
        )

    @property
    def key(self) -> str:
        """sha256 of the canonical JSON."""
        return sha256_key(self.to_json())


@runtime_checkable
class Family(Protocol):
    """One kernel template. Every method is a pure function of its arguments: no clock, no file, no chance."""

    @property
    def name(self) -> str:
        """As in schedules and plans, such as gemm_x86."""
        ...

    @property
    def version(self) -> int:
        """Raised when parameters change their meaning."""
        ...

    def supports(self, problem: Problem, arch_name: str) -> list[Violation]:
        """Why this family cannot compute the problem on that arch at all; empty: it can."""
        ...

    def parameters(self, problem: Problem, device: Device) -> tuple[Parameter, ...]:
        """The parameters and their choices here."""
        ...

    def check(self, problem: Problem, device: Device, schedule: Schedule) -> list[Violation]:
        """Why the schedule is not legal here; empty: it is."""
        ...

    def default(self, problem: Problem, device: Device) -> Schedule:
        """The schedule to use when nothing was tuned; always legal."""
        ...

    def candidates(self, problem: Problem, device: Device) -> list[Schedule]:
        """A handful of good starts, the default first; all legal."""
        ...

    def predict(self, problem: Problem, device: Device, schedule: Schedule) -> Estimate:
        """The cost model's expectation."""
        ...

    def build(self, problem: Problem, device: Device, schedule: Schedule) -> BuildSpec:
        """What to compile; depends on the problem's dtypes, layouts and epilogue, never on its sizes."""
        ...

    def plan(self, problem: Problem, device: Device, schedule: Schedule) -> LaunchPlan:
        """How to run what was compiled."""
        ...

    def shared_map(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[SharedArea, ...]:
        """The areas of dynamic shared memory; none on x86."""
        ...

    def structure(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, Value]:
        """What a proof depends on: roles, movement, layout, class of stages, epilogue, dtypes, never sizes.
        Schedules of equal structure share a verdict."""
        ...

    def proof_problems(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[Problem, ...]:
        """Small problems that keep the structure and for which the schedule is legal: several tiles, ragged
        edges, more steps of k than stages, fewer, less than one. None where nothing is emulated (x86)."""
        ...

    def roles(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, range]:
        """Warps of a block by role (producer, consumer0...), whose counters are told apart. None: all do the
        same."""
        ...
