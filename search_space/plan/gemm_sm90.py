"""Family gemm_sm90: GEMM on sm_90a by TMA, WGMMA and warpgroups with roles. What are its parts?

gemm_cuda_shape.py   the template's view of a problem
gemm_cuda_plan.py    arguments, parts of k
gemm_cuda_rules.py   what the CUDA families refuse alike
gemm_sm90_space.py   parameters, and which problems
gemm_sm90_rules.py   legality
gemm_sm90_tile.py    roles, shared memory and registers of a schedule
gemm_sm90_starts.py  default schedule and other good starts
gemm_sm90_cost.py    cost model
gemm_sm90_plan.py    what is compiled, tensor maps, launch, structure
gemm_sm90_proof.py   problems for the emulator
kernels/cuda/gemm/gemm_sm90.cu   the template
"""

from __future__ import annotations

from rooftile.plan import LaunchPlan
from rooftile.problem import Problem

from search_space.device import Device
from search_space.family import BuildSpec, Estimate, Family, Parameter, SharedArea
from search_space.gpu_device import as_gpu
from search_space.plan import (
    gemm_sm90_cost,
    gemm_sm90_plan,
    gemm_sm90_proof,
    gemm_sm90_space,
    gemm_sm90_starts,
)
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm90_tile import Tile
from search_space.schedule import Schedule, Value
from search_space.violation import Violation


class GemmSm90:
    """See search_space.family.Family for what each method answers."""

    name = gemm_sm90_space.NAME
    version = 1

    def supports(self, problem: Problem, arch_name: str) -> list[Violation]:
        """Why not; empty: it can."""
        return gemm_sm90_space.unsupported(problem, arch_name)

    def parameters(self, problem: Problem, device: Device) -> tuple[Parameter, ...]:
        """The space's dimensions."""
        return gemm_sm90_space.parameters(problem, as_gpu(device))

    def check(self, problem: Problem, device: Device, schedule: Schedule) -> list[Violation]:
        """Why a schedule is not legal."""
        return gemm_sm90_space.check(problem, as_gpu(device), schedule)

    def default(self, problem: Problem, device: Device) -> Schedule:
        """The schedule where nothing was tuned."""
        return gemm_sm90_starts.default(problem, as_gpu(device))

    def candidates(self, problem: Problem, device: Device) -> list[Schedule]:
        """Good starts, the default first."""
        return gemm_sm90_starts.candidates(problem, as_gpu(device))

    def predict(self, problem: Problem, device: Device, schedule: Schedule) -> Estimate:
        """The cost model's expectation."""
        return gemm_sm90_cost.predict(problem, as_gpu(device), schedule)

    def build(self, problem: Problem, device: Device, schedule: Schedule) -> BuildSpec:
        """What to compile."""
        return gemm_sm90_plan.build(problem, as_gpu(device), schedule)

    def plan(self, problem: Problem, device: Device, schedule: Schedule) -> LaunchPlan:
        """How to run it."""
        return gemm_sm90_plan.plan(problem, as_gpu(device), schedule)

    def shared_map(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[SharedArea, ...]:
        """Rings, what is on its way out, barriers."""
        return gemm_sm90_plan.shared_map(problem, schedule)

    def structure(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, Value]:
        """What a proof depends on."""
        return gemm_sm90_plan.structure(problem, as_gpu(device), schedule)

    def proof_problems(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[Problem, ...]:
        """Small problems for the emulator."""
        shape = Shape.of(problem)
        grid = gemm_sm90_plan.grid_of(shape, schedule)
        hilbert = schedule.text("raster") == "hilbert"
        return gemm_sm90_proof.problems(problem, shape, Tile.of(schedule), grid, hilbert=hilbert)

    def roles(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, range]:
        """The producer's warps and each consumer's."""
        return gemm_sm90_plan.roles(schedule)


FAMILY: Family = GemmSm90()
