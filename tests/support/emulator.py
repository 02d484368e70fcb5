"""How does a test run a few lines of CUDA in the emulator?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from rooftile.plan import Arg, Launch, LaunchPlan, Workspace

from emulator import Limits, Order, Program, Region, Report, run_plan

Cuda: TypeAlias = Callable[..., Program]


def launch(
    program: Program,
    arrays: Mapping[str, Any],
    *,
    block: int = 32,
    grid: int = 1,
    smem: int = 0,
    sizes: Mapping[str, int] | None = None,
    args: Sequence[Arg] | None = None,
    workspace: int = 0,
    init: str = "none",
    order: Order | str = "late",
    regions: Sequence[Region] = (),
    limits: Limits | None = None,
    stop_at_first: bool = True,
    entry: str = "run",
) -> Report:
    """Run an entry with pointers to `arrays` in the order given, then the sizes as 64-bit integers."""
    sizes = dict(sizes or {})
    given = list(args or [*(Arg.ptr(n) for n in arrays), *(Arg.i64(n) for n in sizes)])
    if workspace:
        given.append(Arg.ptr("workspace"))
    plan = LaunchPlan(
        family="test", arch="sm_80", kind="cuda", entries=(entry,), sizes=tuple(sizes),
        steps=(Launch(entry, tuple(given), grid=(grid, 1, 1), block=(block, 1, 1), smem=smem),),
        workspace=Workspace(workspace, init),
    )  # fmt: skip
    return run_plan(
        program, plan, sizes, arrays, {"alpha": 1.0, "beta": 0.0},
        order=Order(order) if isinstance(order, str) else order, regions=regions,
        limits=limits, stop_at_first=stop_at_first,
    )  # fmt: skip


def floats(*shape: int) -> Any:
    """An output that nobody wrote yet."""
    return np.full(shape, np.nan, np.float32)
