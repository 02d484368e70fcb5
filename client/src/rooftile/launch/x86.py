"""How is an x86 artifact run on arrays of this process?

`X86Kernel` loads the shared object once and works the plan out once for each set of shapes and strides.
Called with arrays it checks them and runs; `prepare` is the level below, with bare addresses, which the
worker times.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rooftile.launch.errors import LaunchError, UnsuitableError
from rooftile.launch.memory import Workspace, address_of
from rooftile.launch.pool import Pool, entry_address, get_pool, load_library
from rooftile.launch.steps import Call, Steps, execute
from rooftile.plan import SCALARS, LaunchPlan

if TYPE_CHECKING:
    from rooftile.launch.gemm_call import GemmCall
    from rooftile.problem import Gemm

__all__ = ["Pool", "Prepared", "X86Kernel", "get_pool"]


class Prepared:
    """A kernel bound to addresses. Whoever made it keeps the memory alive; run() may be called any number of
    times."""

    __slots__ = ("_calls", "_locked", "_pool", "_workspace", "workspace_bytes")

    def __init__(
        self, pool: Pool, calls: list[Call], locked: bool, workspace: Workspace | None, size: int
    ) -> None:
        self._pool = pool
        self._calls = calls
        self._locked = locked
        self._workspace = workspace
        self.workspace_bytes = size

    def run(self) -> None:
        """One call into C for each step of the plan (mostly: one). Returns when the result is there."""
        if self._locked:
            with self._pool.lock:
                execute(self._pool, self._calls)
        else:
            execute(self._pool, self._calls)


class X86Kernel:
    """One artifact with its plan, ready to run. With `problem` it can be called with arrays."""

    def __init__(
        self,
        so_path: str | os.PathLike[str],
        plan: LaunchPlan,
        pool: Pool,
        problem: Gemm | None = None,
        *,
        open_sizes: bool = False,
    ) -> None:
        if plan.kind != "x86":
            raise LaunchError(f"a plan of kind {plan.kind} does not run on the CPU")
        self.plan = plan
        self.pool = pool
        self.problem = problem
        library = load_library(so_path)
        self.functions = {entry: ctypes.c_void_p(entry_address(library, entry)) for entry in plan.entries}
        self._call: GemmCall | None = None
        if problem is not None:
            from rooftile.launch.gemm_call import GemmCall

            self._call = GemmCall(problem, plan, self.functions, pool, open_sizes)

    def prepare(
        self,
        names: Mapping[str, int],
        pointers: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
    ) -> Prepared:
        """Bind the plan to sizes (the plan's names; `threads` is the pool's unless given), addresses by
        buffer name, and scalars. Without a `workspace` among the pointers it gets its own. Refuses sizes and
        alignments that the plan is not valid for. A result without elements needs no run, and gets none."""
        known = {"threads": self.pool.threads, "sm_count": 0, **names}
        align = {name: address & -address for name, address in pointers.items() if address}
        if 0 in (known.get("m"), known.get("n"), known.get("batch")):
            return Prepared(self.pool, [], False, None, 0)
        if reasons := self.plan.check(known, align):
            raise UnsuitableError(f"{self.plan.family} cannot run this: {'; '.join(reasons)}")
        given = {name: float(value) for name, value in (scalars or {}).items()}
        if unknown := given.keys() - set(SCALARS):
            raise LaunchError(f"no such scalar: {', '.join(sorted(unknown))}; there are {', '.join(SCALARS)}")
        addresses = dict(pointers)
        concrete = self.plan.concrete(known)
        workspace = None
        if concrete.workspace_bytes and "workspace" not in addresses:
            workspace = Workspace(concrete.workspace_bytes)
            addresses["workspace"] = workspace.address
        steps = Steps(concrete, self.functions, (*addresses, *given), self.pool.threads)
        try:
            calls = steps.bind((*addresses.values(), *given.values()), addresses.get("workspace", 0))
        except OverflowError as error:  # 1e300 as f32
            raise LaunchError(f"a scalar does not fit the plan's argument: {error}") from error
        return Prepared(self.pool, calls, steps.needs_lock, workspace, steps.workspace_bytes)

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        c: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        bias: Any = None,
        residual: Any = None,
        scale_a: Any = None,
        scale_b: Any = None,
        stream: Any = None,
    ) -> Any:
        """out = activation(alpha * A @ B + beta * C + bias) + residual on arrays; gives `out`, new if None.

        LaunchError when the call is wrong; UnsuitableError when it is right but beyond this plan."""
        if self._call is None:
            raise LaunchError("this kernel was loaded without its problem: give it one, or use prepare()")
        return self._call(a, b, out, c, alpha, beta, bias, residual, scale_a, scale_b, stream)


def address(array: Any) -> int:
    """The address of an array's first element, for prepare()."""
    return address_of(array)
