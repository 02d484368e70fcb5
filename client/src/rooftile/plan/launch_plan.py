"""How is an artifact run: which steps, with which numbers, and for which sizes is that right?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rooftile.errors import PlanError, show_value
from rooftile.plan.expr import Expr, check_name, evaluate, expr_json, names_in, parse_expr
from rooftile.plan.steps import (
    BUFFERS,
    Arg,
    ConcreteStep,
    Fill,
    Launch,
    Step,
    concrete_fill,
    concrete_launch,
)
from rooftile.problem.canonical import canonical_json, sha256_key

KINDS = ("x86", "cuda")
ALWAYS_NAMED = ("threads", "sm_count")
"""Names every expression may use: they are facts of the machine at launch, not sizes of the problem."""

_MAX_STEPS = 64
_RANGE_FIELDS = ("min", "max", "multiple_of")
_ARG_FIELDS = ("buffer", "value", "scalar", "tensor")


@dataclass(frozen=True)
class Workspace:
    """Scratch memory of one call."""

    bytes: Expr = 0
    init: str = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", parse_expr(self.bytes, "workspace.bytes"))
        if self.init not in ("none", "zero"):
            raise PlanError(f"workspace.init: {show_value(self.init)} is not none or zero")


@dataclass(frozen=True)
class SizeRange:
    """The values a size may have for the plan to be right."""

    min: int = 0
    max: int = 2**31 - 1
    multiple_of: int = 1

    def __post_init__(self) -> None:
        for name, low in (("min", 0), ("max", 0), ("multiple_of", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 2**63 - 1:
                raise PlanError(f"valid_for: {name} {show_value(value)} is not a whole number from {low}")
        if self.min > self.max:
            raise PlanError(f"valid_for: min {self.min} is over max {self.max}")


@dataclass(frozen=True)
class ValidFor:
    """Ranges and divisibility of sizes, and alignment in bytes of buffers."""

    sizes: Mapping[str, SizeRange] = field(default_factory=dict)
    align: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", dict(self.sizes))
        object.__setattr__(self, "align", dict(self.align))
        for name in self.sizes:
            check_name(name, "valid_for.sizes")
        for name, value in self.align.items():
            if name not in BUFFERS:
                raise PlanError(f"valid_for.align: {show_value(name)} is no buffer")
            if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value & (value - 1):
                raise PlanError(f"valid_for.align.{name}: {show_value(value)} is not a power of two")


@dataclass(frozen=True)
class ConcretePlan:
    """A plan for one set of sizes."""

    steps: tuple[ConcreteStep, ...]
    workspace_bytes: int
    workspace_zeroed: bool


@dataclass(frozen=True)
class LaunchPlan:
    """How to run an artifact. Plain JSON, schema 1."""

    family: str
    arch: str
    kind: str
    entries: tuple[str, ...]
    sizes: tuple[str, ...]
    steps: tuple[Step, ...]
    workspace: Workspace = Workspace()
    deterministic: bool = True
    valid_for: ValidFor = field(default_factory=ValidFor)

    def __post_init__(self) -> None:
        for name in ("entries", "sizes", "steps"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_name(self.family, "family")
        if not isinstance(self.arch, str) or not self.arch:
            raise PlanError(f"arch: {show_value(self.arch)} is not the name of an arch")
        if self.kind not in KINDS:
            raise PlanError(f"kind: {show_value(self.kind)} is not one of {' '.join(KINDS)}")
        for name in self.entries:
            check_name(name, "entries")
        for name in self.sizes:
            check_name(name, "sizes")
        if not isinstance(self.deterministic, bool):
            raise PlanError(f"deterministic: {show_value(self.deterministic)} is not true or false")
        if not 1 <= len(self.steps) <= _MAX_STEPS:
            raise PlanError(f"steps: {len(self.steps)} of them, not 1 to {_MAX_STEPS}")
        known = {*self.sizes, *ALWAYS_NAMED}
        expressions: list[tuple[str, Expr]] = [("workspace.bytes", self.workspace.bytes)]
        for i, step in enumerate(self.steps):
            if isinstance(step, Launch):
                if step.entry not in self.entries:
                    raise PlanError(f"steps[{i}]: entry {step.entry} is not among the plan's entries")
                maps = any(arg.tensor is not None for arg in step.args)
                if (step.threads is not None) != (self.kind == "x86") or (maps and self.kind == "x86"):
                    raise PlanError(f"steps[{i}]: a plan of kind {self.kind} cannot launch like that")
            expressions += [(f"steps[{i}]", e) for e in step.expressions()]
        for where, expr in expressions:
            for name in names_in(expr):
                if name not in known:
                    raise PlanError(f"{where}: {name} is not among the plan's sizes")
        for name in self.valid_for.sizes:
            if name not in known:
                raise PlanError(f"valid_for.sizes: {name} is not among the plan's sizes")

    def __hash__(self) -> int:
        return hash(self.canonical())

    # -- JSON -------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this plan."""
        return {
            "schema": 1,
            "family": self.family,
            "arch": self.arch,
            "kind": self.kind,
            "entries": list(self.entries),
            "sizes": list(self.sizes),
            "workspace": {"bytes": expr_json(self.workspace.bytes), "init": self.workspace.init},
            "steps": [step.to_json() for step in self.steps],
            "deterministic": self.deterministic,
            "valid_for": {
                "sizes": {
                    name: {"min": r.min, "max": r.max, "multiple_of": r.multiple_of}
                    for name, r in self.valid_for.sizes.items()
                },
                "align": dict(self.valid_for.align),
            },
        }

    def canonical(self) -> str:
        """The text that the key is the hash of."""
        return canonical_json(self.to_json())

    @property
    def key(self) -> str:
        """sha256 of the canonical JSON."""
        return sha256_key(self.to_json())

    @classmethod
    def from_json(cls, obj: object) -> LaunchPlan:
        """The plan that decoded JSON describes; anything unknown or malformed in it is a PlanError."""
        f = _fields(obj, "plan", required=("schema", "family", "arch", "kind", "entries", "steps"),
                    optional=("sizes", "workspace", "deterministic", "valid_for"))  # fmt: skip
        if type(f["schema"]) is not int or f["schema"] != 1:
            raise PlanError(f"schema: {show_value(f['schema'])} is not 1, the only schema this client knows")
        workspace = _fields(f.get("workspace", {}), "workspace", optional=("bytes", "init"))
        valid = _fields(f.get("valid_for", {}), "valid_for", optional=("sizes", "align"))
        ranges = _mapping(valid.get("sizes", {}), "valid_for.sizes")
        steps = _list(f["steps"], "steps")
        return cls(
            family=f["family"],
            arch=f["arch"],
            kind=f["kind"],
            entries=tuple(_list(f["entries"], "entries")),
            sizes=tuple(_list(f.get("sizes", []), "sizes")),
            steps=tuple(_step(step, f"steps[{i}]") for i, step in enumerate(steps)),
            workspace=Workspace(**workspace),
            deterministic=f.get("deterministic", True),
            valid_for=ValidFor(
                {
                    name: SizeRange(**_fields(r, f"valid_for.sizes.{name}", optional=_RANGE_FIELDS))
                    for name, r in ranges.items()
                },
                _mapping(valid.get("align", {}), "valid_for.align"),
            ),
        )

    # -- use --------------------------------------------------------------------------------------------

    def concrete(self, names: Mapping[str, int]) -> ConcretePlan:
        """Every expression worked out for these sizes."""
        workspace_bytes = evaluate(self.workspace.bytes, names)
        if workspace_bytes < 0:
            raise PlanError(f"workspace of {workspace_bytes} bytes")
        steps: list[ConcreteStep] = []
        for step in self.steps:
            if isinstance(step, Fill):
                steps.append(concrete_fill(step, names, workspace_bytes))
            else:
                steps.append(concrete_launch(step, names))
        return ConcretePlan(tuple(steps), workspace_bytes, self.workspace.init == "zero")

    def check(self, names: Mapping[str, int], align: Mapping[str, int] | None = None) -> list[str]:
        """Why the plan cannot run at these sizes with buffers aligned like this (bytes, by buffer; a buffer
        not named is not given to the call). Empty: it can."""
        reasons = []
        for name, r in self.valid_for.sizes.items():
            value = names.get(name)
            if value is None:
                reasons.append(f"{name} is not given")
            elif not r.min <= value <= r.max:
                reasons.append(f"{name} = {value} is outside {r.min} to {r.max}")
            elif value % r.multiple_of:
                reasons.append(f"{name} = {value} is no multiple of {r.multiple_of}")
        for name, wanted in self.valid_for.align.items():
            given = (align or {}).get(name)
            if given is not None and given % wanted:
                reasons.append(f"{name} is aligned to {given} bytes, not {wanted}")
        return reasons


def _step(obj: object, where: str) -> Step:
    op = _mapping(obj, where).get("op")
    try:
        if op == "fill":
            f = _fields(obj, where, required=("op", "offset", "bytes"), optional=("target", "value"))
            del f["op"]
            return Fill(**f)
        if op == "launch":
            f = _fields(obj, where, required=("op", "entry", "args"),
                        optional=("threads", "grid", "block", "cluster", "smem"))  # fmt: skip
            del f["op"]
            f["args"] = tuple(
                Arg(**_fields(a, f"args[{i}]", required=("name", "type"), optional=_ARG_FIELDS))
                for i, a in enumerate(_list(f["args"], "args"))
            )
            for name in ("grid", "block", "cluster"):
                if name in f:
                    f[name] = tuple(_list(f[name], name))
            return Launch(**f)
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None
    raise PlanError(f"{where}.op: {show_value(op)} is not fill or launch")


def _mapping(obj: object, where: str) -> dict[str, Any]:
    if not isinstance(obj, Mapping) or not all(isinstance(name, str) for name in obj):
        raise PlanError(f"{where}: {show_value(obj)} is not an object")
    return dict(obj)


def _list(obj: object, where: str) -> list[Any]:
    if not isinstance(obj, (list, tuple)):
        raise PlanError(f"{where}: {show_value(obj)} is not a list")
    return list(obj)


def _fields(
    obj: object, where: str, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    fields = _mapping(obj, where)
    for name in required:
        if name not in fields:
            raise PlanError(f"{where}: {name} is missing")
    for name in fields:
        if name not in required and name not in optional:
            raise PlanError(f"{where}: {show_value(name)} is unknown")
    return fields
