"""What are the steps of a LaunchPlan, before and after their expressions have values?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from rooftile.errors import PlanError, show_value
from rooftile.plan.expr import Expr, check_name, evaluate, expr_json, parse_expr
from rooftile.plan.tensor_map import ConcreteTensorMap, TensorMap, concrete_tensor_map

BUFFERS = (
    "a", "b", "c", "out", "bias", "residual", "scale_a", "scale_b",
    "q", "k", "v", "lse", "seqlens_q", "seqlens_kv", "block_table", "sinks", "scale_q", "scale_k", "scale_v",
    "workspace",
)  # fmt: skip
"""What a pointer argument can point at. One that the caller did not give is a null pointer."""

SCALARS = ("alpha", "beta")
"""Numbers the caller gives with each call."""

ARG_RANGES: dict[str, tuple[int, int]] = {
    "i32": (-(2**31), 2**31 - 1),
    "u32": (0, 2**32 - 1),
    "i64": (-(2**63), 2**63 - 1),
}
ARG_TYPES = ("ptr", *ARG_RANGES, "f32", "f64", "tensor_map")
_TAKES = {"ptr": "buffer", "f32": "scalar", "f64": "scalar", "tensor_map": "tensor"}


@dataclass(frozen=True)
class Arg:
    """One kernel argument: a buffer's address (ptr), an integer expression (i32 u32 i64), a scalar of the
    call (f32 f64), or a tensor map by value (tensor_map)."""

    name: str
    type: str
    buffer: str | None = None
    value: Expr | None = None
    scalar: str | None = None
    tensor: TensorMap | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "args.name")
        where = f"argument {self.name}"
        if self.type not in ARG_TYPES:
            raise PlanError(f"{where}: type {show_value(self.type)} is not one of {' '.join(ARG_TYPES)}")
        wanted = _TAKES.get(self.type, "value")
        given = [n for n in ("buffer", "value", "scalar", "tensor") if getattr(self, n) is not None]
        if given != [wanted]:
            listed = " and ".join(given) or "nothing"
            raise PlanError(f"{where}: type {self.type} takes {wanted}, not {listed}")
        if wanted == "value":
            object.__setattr__(self, "value", parse_expr(self.value, f"{where}.value"))
        elif wanted == "tensor":
            object.__setattr__(self, "tensor", _tensor(self.tensor, where))
        elif wanted == "buffer":
            _check_buffer(self.buffer, where)
        elif wanted == "scalar" and self.scalar not in SCALARS:
            raise PlanError(f"{where}: scalar {show_value(self.scalar)} is not one of {' '.join(SCALARS)}")

    @classmethod
    def ptr(cls, name: str, buffer: str | None = None) -> Arg:
        """The address of a buffer, by default the one of the same name."""
        return cls(name, "ptr", buffer=buffer or name)

    @classmethod
    def i64(cls, name: str, value: Any = None) -> Arg:
        """A 64-bit integer, by default the size of the same name."""
        return cls(name, "i64", value=name if value is None else parse_expr(value))

    @classmethod
    def tensor_map(cls, name: str, tensor: TensorMap) -> Arg:
        """A tensor map, encoded for the buffer's address at each call."""
        return cls(name, "tensor_map", tensor=tensor)

    @classmethod
    def f32(cls, name: str, scalar: str | None = None) -> Arg:
        """A float of the call, by default the scalar of the same name."""
        return cls(name, "f32", scalar=scalar or name)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this argument."""
        fields: dict[str, Any] = {"name": self.name, "type": self.type}
        if self.buffer is not None:
            fields["buffer"] = self.buffer
        if self.value is not None:
            fields["value"] = expr_json(self.value)
        if self.scalar is not None:
            fields["scalar"] = self.scalar
        if self.tensor is not None:
            fields["tensor"] = self.tensor.to_json()
        return fields


@dataclass(frozen=True)
class Fill:
    """Set `bytes` bytes of the workspace from `offset` on to `value`."""

    offset: Expr
    bytes: Expr
    value: int = 0
    target: str = "workspace"

    def __post_init__(self) -> None:
        if self.target != "workspace":
            raise PlanError(f"fill: target {show_value(self.target)} is not workspace")
        for name in ("offset", "bytes"):
            object.__setattr__(self, name, parse_expr(getattr(self, name), f"fill.{name}"))
        if isinstance(self.value, bool) or not isinstance(self.value, int) or not 0 <= self.value <= 255:
            raise PlanError(f"fill: value {show_value(self.value)} is not a byte, 0 to 255")

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this step."""
        return {
            "op": "fill",
            "target": self.target,
            "offset": expr_json(self.offset),
            "bytes": expr_json(self.bytes),
            "value": self.value,
        }

    def expressions(self) -> Iterator[Expr]:
        """Every expression of this step."""
        yield from (self.offset, self.bytes)


Dim3: TypeAlias = tuple[Expr, Expr, Expr]
_ONES: Dim3 = (1, 1, 1)


@dataclass(frozen=True)
class Launch:
    """Run an entry: with `threads` threads of the pool (x86), or on a grid of blocks (cuda; the grid counts
    blocks, not clusters)."""

    entry: str
    args: tuple[Arg, ...]
    threads: Expr | None = None
    grid: Dim3 | None = None
    block: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    smem: Expr | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        check_name(self.entry, "launch.entry")
        where = f"launch {self.entry}"
        put(self, "args", tuple(self.args))
        names = [a.name for a in self.args]
        if len(set(names)) != len(names):
            raise PlanError(f"{where}: an argument's name appears twice")
        if (self.threads is None) == (self.grid is None):
            raise PlanError(f"{where}: needs either threads (x86) or grid and block (cuda)")
        if self.threads is not None:
            put(self, "threads", parse_expr(self.threads, f"{where}.threads"))
            if self.block is not None or self.cluster is not None or self.smem is not None:
                raise PlanError(f"{where}: block, cluster and smem belong to a grid")
            return
        assert self.grid is not None
        put(self, "grid", tuple(parse_expr(e, f"{where}.grid") for e in _three(self.grid, f"{where}.grid")))
        if self.block is None:
            raise PlanError(f"{where}: needs block with grid")
        put(self, "block", _counts(self.block, f"{where}.block"))
        put(self, "cluster", _counts(self.cluster or (1, 1, 1), f"{where}.cluster"))
        put(self, "smem", parse_expr(0 if self.smem is None else self.smem, f"{where}.smem"))

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this step."""
        fields: dict[str, Any] = {"op": "launch", "entry": self.entry}
        if self.threads is not None:
            fields["threads"] = expr_json(self.threads)
        else:
            assert self.grid
            assert self.block
            assert self.cluster
            assert self.smem is not None
            fields["grid"] = [expr_json(e) for e in self.grid]
            fields["block"] = list(self.block)
            fields["cluster"] = list(self.cluster)
            fields["smem"] = expr_json(self.smem)
        fields["args"] = [a.to_json() for a in self.args]
        return fields

    def expressions(self) -> Iterator[Expr]:
        """Every expression of this step."""
        for expr in (self.threads, *(self.grid or ()), self.smem):
            if expr is not None:
                yield expr
        for arg in self.args:
            if arg.value is not None:
                yield arg.value
            if arg.tensor is not None:
                yield from arg.tensor.expressions()


Step: TypeAlias = Fill | Launch


@dataclass(frozen=True)
class ConcreteArg:
    """An argument whose value is known, but for what the call brings: addresses and scalars."""

    name: str
    type: str
    buffer: str | None = None
    value: int | None = None
    scalar: str | None = None
    tensor: ConcreteTensorMap | None = None


@dataclass(frozen=True)
class ConcreteFill:
    """A fill with its numbers."""

    offset: int
    bytes: int
    value: int


@dataclass(frozen=True)
class ConcreteLaunch:
    """A launch with its numbers. x86: threads; cuda: grid, block, cluster, smem_bytes."""

    entry: str
    args: tuple[ConcreteArg, ...]
    threads: int = 0
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    smem_bytes: int = 0


ConcreteStep: TypeAlias = ConcreteFill | ConcreteLaunch


def concrete_fill(step: Fill, names: Mapping[str, int], workspace_bytes: int) -> ConcreteFill:
    """The fill for these sizes; refused when it leaves the workspace."""
    offset, size = evaluate(step.offset, names), evaluate(step.bytes, names)
    if offset < 0 or size < 0 or offset + size > workspace_bytes:
        raise PlanError(f"fill of {size} bytes at {offset} leaves the workspace of {workspace_bytes} bytes")
    return ConcreteFill(offset, size, step.value)


def concrete_launch(step: Launch, names: Mapping[str, int]) -> ConcreteLaunch:
    """The launch for these sizes; refused when a dimension is below 1 or an argument overflows its type."""
    where = f"launch {step.entry}"
    args = []
    for arg in step.args:
        value = None
        if arg.value is not None:
            value = evaluate(arg.value, names)
            low, high = ARG_RANGES[arg.type]
            if not low <= value <= high:
                raise PlanError(f"{where}: argument {arg.name} = {value} does not fit in {arg.type}")
        tensor = None
        if arg.tensor is not None:
            tensor = concrete_tensor_map(arg.tensor, names, f"{where}: argument {arg.name}")
        args.append(ConcreteArg(arg.name, arg.type, arg.buffer, value, arg.scalar, tensor))
    if step.threads is not None:
        threads = evaluate(step.threads, names)
        if threads < 1:
            raise PlanError(f"{where}: {threads} threads")
        return ConcreteLaunch(step.entry, tuple(args), threads=threads)
    assert step.grid
    assert step.block
    assert step.cluster
    assert step.smem is not None
    x, y, z = (evaluate(e, names) for e in step.grid)
    # A grid of 0 would be launched as 1 by some runtimes: empty problems must end before a launch.
    if min(x, y, z) < 1 or x > 2**31 - 1 or max(y, z) > 65535:
        raise PlanError(f"{where}: grid {x} x {y} x {z} cannot be launched")
    for blocks, cluster in zip((x, y, z), step.cluster, strict=True):
        if blocks % cluster:
            raise PlanError(f"{where}: grid {x} x {y} x {z} is no multiple of cluster {step.cluster}")
    smem = evaluate(step.smem, names)
    if smem < 0:
        raise PlanError(f"{where}: {smem} bytes of shared memory")
    return ConcreteLaunch(step.entry, tuple(args), 0, (x, y, z), step.block, step.cluster, smem)


def _three(value: object, where: str) -> tuple[Any, Any, Any]:
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        raise PlanError(f"{where}: {show_value(value)} is not a list of three")
    return value[0], value[1], value[2]


def _counts(value: object, where: str) -> tuple[int, int, int]:
    three = _three(value, where)
    for n in three:
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 1024:
            raise PlanError(f"{where}: {show_value(n)} is not a whole number from 1 to 1024")
    return three


def _check_buffer(name: object, where: str) -> None:
    if name not in BUFFERS:
        raise PlanError(f"{where}: buffer {show_value(name)} is not one of {' '.join(BUFFERS)}")


def _tensor(obj: object, where: str) -> TensorMap:
    try:
        tensor = obj if isinstance(obj, TensorMap) else TensorMap.from_json(obj)
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None
    _check_buffer(tensor.buffer, where)
    return tensor
