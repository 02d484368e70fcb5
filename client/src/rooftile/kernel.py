"""What does a program hold that asked for a problem's kernel? One callable, whatever stands behind it.

Behind it is a kernel of ours, or the Baseline where that won or nothing of ours is known. A call that is
right but beyond our kernel's plan (a view with strides it cannot read, say) runs on the Baseline, and is
counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftile.best import Best
from rooftile.device import X86_ARCHS, local_cpu
from rooftile.errors import ArtifactError, DeviceError, LaunchError
from rooftile.plan import LaunchPlan
from rooftile.problem import Attention, Gemm, Problem

if TYPE_CHECKING:
    from rooftile.baseline import Baseline
    from rooftile.cache import ArtifactCache
    from rooftile.cuda_baseline import CudaBaseline
    from rooftile.http import Transport
    from rooftile.launch.cuda import CudaKernel
    from rooftile.launch.x86 import X86Kernel


class Kernel:
    """out = kernel(a, b, out=None, *, c, alpha, beta, bias, residual): the problem on arrays of its shapes.

    level      exact, stale, foreign, bucket, default: a kernel of ours; baseline, none: the vendor's (numpy
    on
               a CPU, cuBLASLt on a GPU)
    reason     why that level
    best       the whole answer of the service
    fallbacks  calls that went to the Baseline because our kernel's plan could not do them
    """

    def __init__(
        self, problem: Problem, best: Best, ours: X86Kernel | CudaKernel | None, *, kind: str = "x86"
    ) -> None:
        """`kind` is that of the device: x86 or cuda."""
        if isinstance(problem, Attention):
            raise LaunchError("attention has no kernel and no Baseline yet")
        self._kind = kind
        self.problem = problem
        self.best = best
        self.level = best.level
        self.reason = best.reason
        self.fallbacks = 0
        self.last_fallback: str | None = None
        self._ours = ours
        self._made: Baseline | CudaBaseline | None = None
        if ours is None:
            _ = self._baseline  # a dtype that numpy cannot hold is refused now, not at the first call

    @property
    def _baseline(self) -> Baseline | CudaBaseline:
        if self._made is None:
            assert isinstance(self.problem, Gemm)
            if self._kind == "cuda":
                from rooftile.cuda_baseline import CudaBaseline

                self._made = CudaBaseline(self.problem)
            else:
                from rooftile.baseline import Baseline

                self._made = Baseline(self.problem)
        return self._made

    def warm_up(self, device: int | None = None) -> None:
        """On a GPU: load the kernel on a device (default: the current one) before the first call, so that
        this may come from within the capture of a CUDA graph. On a CPU there is nothing to do."""
        warm = getattr(self._ours, "warm_up", None)
        if warm is not None:
            warm(device)

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
        """activation(alpha * A @ B + beta * C + bias) + residual; gives `out`, made where it is None.

        Arrays have the shape of their layout's letters, `batch` in front when it is over 1. LaunchError names
        what is wrong with a call."""
        ours = self._ours
        if ours is not None:
            from rooftile.launch.errors import UnsuitableError

            try:
                return ours(a, b, out, c=c, alpha=alpha, beta=beta, bias=bias, residual=residual,
                            scale_a=scale_a, scale_b=scale_b, stream=stream)  # fmt: skip
            except UnsuitableError as error:
                self.fallbacks += 1
                self.last_fallback = str(error)
        return self._baseline(a, b, out, c=c, alpha=alpha, beta=beta, bias=bias, residual=residual,
                              scale_a=scale_a, scale_b=scale_b, stream=stream)  # fmt: skip

    def __repr__(self) -> str:
        vendor = "cuBLASLt" if self._kind == "cuda" else "numpy"
        return f"<Kernel {self.problem.title()}: {self.level}, {self.best.schedule_text or vendor}>"


def load_kernel(
    problem: Problem, best: Best, cache: ArtifactCache, transport: Transport, threads: int | None
) -> Kernel:
    """The kernel of a lookup's answer, its bytes fetched, checked and loaded."""
    if best.artifact is None or best.launch is None:
        return Kernel(problem, best, None, kind="cuda" if (best.device or "").startswith("gpu-") else "x86")
    plan = LaunchPlan.from_json(best.launch)
    if plan.kind == "cuda":
        return _load_cuda(problem, best, plan, cache, transport)
    if best.pool is None:
        raise ArtifactError("the service names no thread pool for this kernel")
    if not isinstance(problem, Gemm):
        raise LaunchError("attention has no CPU launcher yet")
    from rooftile.launch.pool import get_pool
    from rooftile.launch.x86 import X86Kernel

    cpu = local_cpu()
    if not runs_on(plan.arch, cpu.arch):
        # It would end in an illegal instruction, at some call, perhaps much later.
        raise DeviceError(f"the kernel is for {plan.arch}, this CPU has {cpu.arch}")

    def fetch(sha256: str) -> bytes:
        return transport.get_bytes(f"/v1/artifacts/{sha256}")

    pool_so: Path = cache.path(best.pool, plan.arch, fetch)
    kernel_so = cache.path(best.artifact, plan.arch, fetch)
    pool = get_pool(pool_so, threads or cpu.cores)
    return Kernel(problem, best, X86Kernel(kernel_so, plan, pool, problem))


def _load_cuda(
    problem: Problem, best: Best, plan: LaunchPlan, cache: ArtifactCache, transport: Transport
) -> Kernel:
    if not isinstance(problem, Gemm):
        raise LaunchError("attention has no launcher yet")
    if best.artifact is None:
        raise ArtifactError("the service names no cubin for this kernel")
    from rooftile.launch.cuda import CudaKernel
    from rooftile.launch.cuda_runtime import cupy_runtime

    runtime = cupy_runtime()  # before anything is fetched: without CUDA it would be for nothing
    path = cache.path(best.artifact, plan.arch, lambda sha256: transport.get_bytes(f"/v1/artifacts/{sha256}"))
    return Kernel(problem, best, CudaKernel(path, plan, problem, runtime=runtime), kind="cuda")


def runs_on(arch: str, cpu_arch: str) -> bool:
    """Whether a CPU of `cpu_arch` has every instruction of `arch`; False for what is no x86 arch."""
    if arch not in X86_ARCHS:
        return False
    base, *extensions = arch.removeprefix("x86-64-").split("-")
    cpu_base, *cpu_extensions = cpu_arch.removeprefix("x86-64-").split("-")
    return base <= cpu_base and set(extensions) <= set(cpu_extensions)
