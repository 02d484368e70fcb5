"""Family gemm_x86: GEMM in f32 on x86 CPUs with AVX2 or AVX-512. What are its parts?

gemm_x86_shape.py   the kernel's view of a problem, and what is refused
gemm_x86_space.py   parameters and legality
gemm_x86_starts.py  default schedule and other good starts
gemm_x86_cost.py    cost model
gemm_x86_plan.py    what is compiled, and the LaunchPlan
"""

from __future__ import annotations

from rooftile.plan import LaunchPlan
from rooftile.problem import Problem

from search_space.cpu_device import as_cpu
from search_space.device import Device
from search_space.family import BuildSpec, Estimate, Family, Parameter, SharedArea
from search_space.plan import gemm_x86_cost, gemm_x86_plan, gemm_x86_shape, gemm_x86_space, gemm_x86_starts
from search_space.schedule import Schedule, Value
from search_space.violation import Violation


class GemmX86:
    """See search_space.family.Family for what each method answers."""

    name = gemm_x86_space.NAME
    version = 1

    def supports(self, problem: Problem, arch_name: str) -> list[Violation]:
        """Why not; empty: it can."""
        return gemm_x86_shape.unsupported(problem, arch_name)

    def parameters(self, problem: Problem, device: Device) -> tuple[Parameter, ...]:
        """The space's dimensions."""
        return gemm_x86_space.parameters(problem, as_cpu(device))

    def check(self, problem: Problem, device: Device, schedule: Schedule) -> list[Violation]:
        """Why a schedule is not legal."""
        return gemm_x86_space.check(problem, as_cpu(device), schedule)

    def default(self, problem: Problem, device: Device) -> Schedule:
        """The schedule where nothing was tuned."""
        return gemm_x86_starts.default(problem, as_cpu(device))

    def candidates(self, problem: Problem, device: Device) -> list[Schedule]:
        """Good starts, the default first."""
        return gemm_x86_starts.candidates(problem, as_cpu(device))

    def predict(self, problem: Problem, device: Device, schedule: Schedule) -> Estimate:
        """The cost model's expectation."""
        return gemm_x86_cost.predict(problem, as_cpu(device), schedule)

    def build(self, problem: Problem, device: Device, schedule: Schedule) -> BuildSpec:
        """What to compile."""
        return gemm_x86_plan.build(problem, as_cpu(device), schedule)

    def plan(self, problem: Problem, device: Device, schedule: Schedule) -> LaunchPlan:
        """How to run it."""
        return gemm_x86_plan.plan(problem, as_cpu(device), schedule)

    def shared_map(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[SharedArea, ...]:
        """None: CPUs have no shared memory of that kind."""
        return ()

    def structure(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, Value]:
        """The macros it is built with, and who does what."""
        spec = gemm_x86_plan.build(problem, as_cpu(device), schedule)
        roles = {n: v for n, v in schedule.group("roles").items() if isinstance(v, (str, bool))}
        return {"source": spec.source, **dict(spec.defines), **roles}

    def proof_problems(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[Problem, ...]:
        """None: x86 artifacts are proved on the device."""
        return ()

    def roles(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, range]:
        """None: there are no warps."""
        return {}


FAMILY: Family = GemmX86()
