"""How does the search see a recorded space: which schedules are legal, and what is expected of each?

A family as any other. A schedule is legal where it was recorded; the cost model knows the tile's traffic
alone, as a first cost model does, and never a recorded time.
"""

from __future__ import annotations

from rooftile.plan import LaunchPlan
from rooftile.problem import Gemm, Problem

from bench.replay.recording import recording
from search_space import registry
from search_space.device import Device
from search_space.family import BuildSpec, Estimate, Parameter, SharedArea
from search_space.schedule import Schedule, Value
from search_space.violation import Violation

NAME = "replay_gemm"
SIZE = 4096
PROBLEM = Gemm(SIZE, SIZE, SIZE, "f32")
"""What the recorded kernel computed."""
# A plain tile of CLBlast's, which was recorded.
_DEFAULT = {
    "MWG": 64, "NWG": 64, "KWG": 32, "MDIMC": 8, "NDIMC": 8, "MDIMA": 8, "NDIMB": 8, "KWI": 2, "VWM": 4,
    "VWN": 4, "STRM": 0, "STRN": 0, "SA": 1, "SB": 1, "PRECISION": 32,
}  # fmt: skip
_GROUPS = {"SA": "movement", "SB": "movement", "VWM": "movement", "VWN": "movement"}
# An RTX 3090 by its data sheet: operations and bytes of L2 a microsecond.
_FLOPS_A_US, _BYTES_A_US = 35.6e6, 2.0e6


class ReplayFamily:
    """The recorded space of a GEMM kernel."""

    name = NAME
    version = 1

    def supports(self, problem: Problem, arch_name: str) -> list[Violation]:
        if problem.key != PROBLEM.key:
            return [Violation("recorded", f"only {PROBLEM.title()} was recorded", {})]
        if not arch_name.startswith("x86"):
            return [Violation("arch", f"is replayed beside x86, not on {arch_name}", {"arch": arch_name})]
        return []

    def parameters(self, problem: Problem, device: Device) -> tuple[Parameter, ...]:
        return _PARAMETERS

    def check(self, problem: Problem, device: Device, schedule: Schedule) -> list[Violation]:
        if recording().time_us(schedule.values()) is None:
            return [Violation("recorded", "this configuration was not recorded", {})]
        return []

    def default(self, problem: Problem, device: Device) -> Schedule:
        return Schedule.of(NAME, _PARAMETERS, _DEFAULT)

    def candidates(self, problem: Problem, device: Device) -> list[Schedule]:
        return [self.default(problem, device)]

    def predict(self, problem: Problem, device: Device, schedule: Schedule) -> Estimate:
        flops = 2.0 * SIZE**3
        moved = 4.0 * SIZE**3 * (1 / schedule.integer("MWG") + 1 / schedule.integer("NWG"))
        terms = {"compute": flops / _FLOPS_A_US, "memory": moved / _BYTES_A_US}
        return Estimate(sum(terms.values()), max(terms, key=lambda name: terms[name]), terms)

    def build(self, problem: Problem, device: Device, schedule: Schedule) -> BuildSpec:
        defines = tuple((name, str(value)) for name, value in schedule.values().items())
        return BuildSpec("replay", device.arch.name, defines)

    def plan(self, problem: Problem, device: Device, schedule: Schedule) -> LaunchPlan:
        return LaunchPlan.from_json(
            {
                "schema": 1,
                "family": NAME,
                "arch": device.arch.name,
                "kind": "x86",
                "entries": ["run"],
                "sizes": ["m", "n", "k", "batch"],
                "workspace": {"bytes": 0, "init": "none"},
                "steps": [
                    {
                        "op": "launch",
                        "entry": "run",
                        "threads": "threads",
                        "args": [{"name": "m", "type": "i64", "value": "m"}],
                    }
                ],
            }
        )

    def shared_map(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[SharedArea, ...]:
        return ()

    def structure(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, Value]:
        return {}

    def proof_problems(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[Problem, ...]:
        return ()

    def roles(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, range]:
        return {}


_PARAMETERS = tuple(
    Parameter(name, _GROUPS.get(name, "tile"), values) for name, values in recording().parameters.items()
)
FAMILY = ReplayFamily()


def register() -> None:
    """Make it known to this process, before all others: for processes of a replayed run."""
    registry._MODULES[NAME] = __name__
    registry._OP_OF[NAME] = "gemm"
    registry.get_family.cache_clear()
