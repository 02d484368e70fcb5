"""A small real family for tests of searching: legal and illegal points, a cost model that is half right,
and a true time that only the tests' hands know."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from rooftile.plan import LaunchPlan
from rooftile.problem import Problem

from search_space import registry
from search_space.device import Device
from search_space.family import BuildSpec, Estimate, Parameter, SharedArea
from search_space.schedule import Schedule, Value
from search_space.violation import Violation

NAME = "toy_x86"


class ToyFamily:
    """2,880 points, of which about half are legal."""

    name = NAME
    version = 1
    ways: tuple[str, ...] = ("rows", "columns", "both")

    def supports(self, problem: Problem, arch_name: str) -> list[Violation]:
        if problem.op != "gemm":
            return [Violation("op", f"computes gemm, not {problem.op}", {})]
        if not arch_name.startswith("x86"):
            return [Violation("arch", f"runs on x86, not on {arch_name}", {"arch": arch_name})]
        return []

    def parameters(self, problem: Problem, device: Device) -> tuple[Parameter, ...]:
        return (
            Parameter("mr", "tile", (1, 2, 4, 6, 8)),
            Parameter("nr", "tile", (8, 16, 32, 48)),
            Parameter("kc", "tile", (64, 128, 256, 512)),
            Parameter("pack", "movement", (False, True)),
            Parameter("prefetch", "movement", (0, 4, 8)),
            Parameter("split", "order", (1, 2)),
            Parameter("way", "order", self.ways, left_out=(("diagonal", "rows would be cut"),)),
        )

    def check(self, problem: Problem, device: Device, schedule: Schedule) -> list[Violation]:
        found = []
        registers = schedule.integer("mr") * schedule.integer("nr") // 8
        if registers > 28:
            found.append(
                Violation("registers", "too many accumulators", {"registers": registers, "most": 28})
            )
        if schedule.text("way") == "both" and schedule.integer("split") == 1:
            found.append(Violation("way", "both needs split 2", {}))
        return found

    def default(self, problem: Problem, device: Device) -> Schedule:
        values = {"mr": 4, "nr": 16, "kc": 128, "pack": False, "prefetch": 0, "split": 1, "way": "rows"}
        return Schedule.of(self.name, self.parameters(problem, device), values)

    def candidates(self, problem: Problem, device: Device) -> list[Schedule]:
        first = self.default(problem, device)
        return [first, first.replace(mr=6, kc=256), first.replace(pack=True, split=2)]

    def predict(self, problem: Problem, device: Device, schedule: Schedule) -> Estimate:
        tile = schedule.integer("mr") * schedule.integer("nr")
        return Estimate(1000.0 + 20.0 * abs(math.log2(tile / 128)), "compute", {"tile": float(tile)})

    def build(self, problem: Problem, device: Device, schedule: Schedule) -> BuildSpec:
        defines = tuple((name.upper(), str(value)) for name, value in schedule.values().items())
        return BuildSpec("x86/toy.c", device.arch.name, defines)

    def plan(self, problem: Problem, device: Device, schedule: Schedule) -> LaunchPlan:
        return LaunchPlan.from_json(plan_json(device.arch.name, 4096 * schedule.integer("split")))

    def shared_map(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[SharedArea, ...]:
        return ()

    def structure(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, Value]:
        return {}

    def proof_problems(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[Problem, ...]:
        return ()

    def roles(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, range]:
        return {}


def plan_json(arch: str, workspace_bytes: int) -> dict[str, object]:
    return {
        "schema": 1,
        "family": NAME,
        "arch": arch,
        "kind": "x86",
        "entries": ["run"],
        "sizes": ["m", "n", "k", "batch"],
        "workspace": {"bytes": workspace_bytes, "init": "none"},
        "steps": [
            {
                "op": "launch",
                "entry": "run",
                "threads": "threads",
                "args": [{"name": "m", "type": "i64", "value": "m"}],
            }
        ],
    }


def true_us(schedule: Schedule) -> float:
    """What the hands measure: one best point, far from the default, in a landscape without plateaus."""
    time = 1000.0
    time *= 1 + 0.20 * abs(math.log2(schedule.integer("mr") / 6))
    time *= 1 + 0.10 * abs(math.log2(schedule.integer("nr") / 32))
    time *= 1 + 0.05 * abs(math.log2(schedule.integer("kc") / 256))
    time *= 1.0 if schedule.flag("pack") else 1.3
    time *= 1 + 0.01 * abs(schedule.integer("prefetch") - 4)
    time *= 1.0 if schedule.integer("split") == 2 else 1.15
    return time * {"rows": 1.1, "columns": 1.0}.get(schedule.text("way"), 1.05)


FAMILY = ToyFamily()
BEST_US = 1000.0


def register(name: str = NAME, module: str = __name__) -> None:
    """Make it the only family of this process. For processes that end with the test."""
    registry._MODULES.clear()
    registry._MODULES[name] = module
    registry._OP_OF.clear()
    registry._OP_OF[name] = "gemm"
    registry.get_family.cache_clear()


@contextmanager
def only_family(name: str = NAME, module: str = __name__) -> Iterator[ToyFamily]:
    """The only family while the block runs."""
    modules, ops = dict(registry._MODULES), dict(registry._OP_OF)
    register(name, module)
    try:
        found = registry.get_family(name)
        assert isinstance(found, ToyFamily)
        yield found
    finally:
        registry._MODULES.clear()
        registry._MODULES.update(modules)
        registry._OP_OF.clear()
        registry._OP_OF.update(ops)
        registry.get_family.cache_clear()
