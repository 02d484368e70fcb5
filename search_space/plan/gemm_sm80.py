"""Family gemm_sm80: GEMM on tensor cores by cp.async and mma.sync, for sm_80 and later. What are its parts?

gemm_cuda_shape.py   the template's view of a problem
gemm_cuda_plan.py    LaunchPlan: grid, arguments, workspace
gemm_cuda_rules.py   what both CUDA families refuse alike
gemm_cuda_cost.py    cost model
gemm_cuda_proof.py   problems for the emulator
gemm_sm80_space.py   parameters and legality
gemm_sm80_tile.py    threads, shared memory and registers of a schedule
gemm_sm80_starts.py  default schedule and other good starts
gemm_sm80_cost.py    what the cost model is told
gemm_sm80_plan.py    what is compiled, shared memory, structure
kernels/cuda/gemm/gemm_sm80.cu   the template
"""

from __future__ import annotations

from rooftile.plan import LaunchPlan
from rooftile.problem import Problem

from search_space.device import Device
from search_space.family import BuildSpec, Estimate, Family, Parameter, SharedArea
from search_space.gpu_device import as_gpu
from search_space.plan import gemm_sm80_cost, gemm_sm80_plan, gemm_sm80_space, gemm_sm80_starts
from search_space.schedule import Schedule, Value
from search_space.violation import Violation


class GemmSm80:
    """See search_space.family.Family for what each method answers."""

    name = gemm_sm80_space.NAME
    version = 1

    def supports(self, problem: Problem, arch_name: str) -> list[Violation]:
        """Why not; empty: it can."""
        return gemm_sm80_space.unsupported(problem, arch_name)

    def parameters(self, problem: Problem, device: Device) -> tuple[Parameter, ...]:
        """The space's dimensions."""
        return gemm_sm80_space.parameters(problem, as_gpu(device))

    def check(self, problem: Problem, device: Device, schedule: Schedule) -> list[Violation]:
        """Why a schedule is not legal."""
        return gemm_sm80_space.check(problem, as_gpu(device), schedule)

    def default(self, problem: Problem, device: Device) -> Schedule:
        """The schedule where nothing was tuned."""
        return gemm_sm80_starts.default(problem, as_gpu(device))

    def candidates(self, problem: Problem, device: Device) -> list[Schedule]:
        """Good starts, the default first."""
        return gemm_sm80_starts.candidates(problem, as_gpu(device))

    def predict(self, problem: Problem, device: Device, schedule: Schedule) -> Estimate:
        """The cost model's expectation."""
        return gemm_sm80_cost.predict(problem, as_gpu(device), schedule)

    def build(self, problem: Problem, device: Device, schedule: Schedule) -> BuildSpec:
        """What to compile."""
        return gemm_sm80_plan.build(problem, as_gpu(device), schedule)

    def plan(self, problem: Problem, device: Device, schedule: Schedule) -> LaunchPlan:
        """How to run it."""
        return gemm_sm80_plan.plan(problem, as_gpu(device), schedule)

    def shared_map(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[SharedArea, ...]:
        """The ring of stages."""
        return gemm_sm80_plan.shared_map(problem, schedule)

    def structure(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, Value]:
        """What a proof depends on."""
        return gemm_sm80_plan.structure(problem, as_gpu(device), schedule)

    def proof_problems(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[Problem, ...]:
        """Small problems for the emulator."""
        return gemm_sm80_plan.proof_problems(problem, schedule)

    def roles(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, range]:
        """None: every warp does the same."""
        return {}


FAMILY: Family = GemmSm80()
