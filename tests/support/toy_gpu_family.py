"""The toy family on a GPU arch: the same space, with structures that an emulated verdict speaks for."""

from __future__ import annotations

from rooftile.plan import LaunchPlan
from rooftile.problem import Problem
from support.toy_family import ToyFamily

from search_space.device import Device
from search_space.family import BuildSpec, Estimate
from search_space.schedule import Schedule, Value
from search_space.violation import Violation

NAME = "toy_sm80"
ARCH = "sm_80"


class ToyGpuFamily(ToyFamily):
    """Six structures: by `way` and `split`."""

    name = NAME

    def supports(self, problem: Problem, arch_name: str) -> list[Violation]:
        if problem.op != "gemm":
            return [Violation("op", f"computes gemm, not {problem.op}", {})]
        if arch_name != ARCH:
            return [Violation("arch", f"runs on {ARCH}, not on {arch_name}", {"arch": arch_name})]
        return []

    def predict(self, problem: Problem, device: Device, schedule: Schedule) -> Estimate:
        # Without ties, so that "the best four" means something.
        base = super().predict(problem, device, schedule)
        extra = schedule.integer("kc") / 512 + schedule.integer("prefetch") + 3 * schedule.integer("split")
        return Estimate(base.time_us + extra, base.bound, base.terms)

    def build(self, problem: Problem, device: Device, schedule: Schedule) -> BuildSpec:
        return BuildSpec("cuda/toy.cu", device.arch.name, (("KEY", schedule.key[:8]),), (), ("toy",))

    def plan(self, problem: Problem, device: Device, schedule: Schedule) -> LaunchPlan:
        launch = {
            "op": "launch",
            "entry": "toy",
            "grid": [1, "batch", 1],
            "block": [32, 1, 1],
            "args": [{"name": "m", "type": "i64", "value": "m"}],
        }
        return LaunchPlan.from_json(
            {
                "schema": 1,
                "family": NAME,
                "arch": device.arch.name,
                "kind": "cuda",
                "entries": ["toy"],
                "sizes": ["m", "n", "k", "batch"],
                "workspace": {"bytes": 0, "init": "none"},
                "steps": [launch],
            }
        )

    def structure(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, Value]:
        return {"way": schedule.text("way"), "split": schedule.integer("split")}


FAMILY = ToyGpuFamily()
