"""How do a few lines of CUDA become a Program?"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.emulator import Cuda

from emulator import Program
from search_space.family import BuildSpec
from worker.compile import compile_kernel

PRELUDE = """
#define SHARED(type, name) extern __shared__ __align__(16) type name[]
__device__ inline unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
template <int N> __device__ inline void copy(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :: "r"(shared_address(to)), "l"(from), "n"(N) : "memory");
}
__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ inline void wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
__device__ inline void barrier(int id, int n) {
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(n) : "memory");
}
__device__ inline void arrive(int id, int n) {
    asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(n) : "memory");
}
"""


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Cuda:
    """Compile `extern "C" __global__ void run(...)`, whose line 1 is the text's first, to a Program."""
    root = tmp_path_factory.mktemp("kernels")
    (root / "cuda" / "include").mkdir(parents=True)
    (root / "cuda" / "include" / "prelude.cuh").write_text(PRELUDE)
    home = tmp_path_factory.mktemp("home")
    known: dict[tuple[str, ...], Program] = {}

    def build(text: str, arch: str = "sm_80", entries: tuple[str, ...] = ("run",)) -> Program:
        key = (text, arch, *entries)
        if key not in known:
            source = f"cuda/test_{len(known) + 1}.cu"
            Path(root / source).write_text('#include "prelude.cuh"\n#line 1\n' + text.strip() + "\n")
            made = compile_kernel(BuildSpec(source=source, arch=arch, entries=entries), home=home, root=root)
            assert made.ptx is not None
            known[key] = Program.from_ptx(made.ptx)
        return known[key]

    return build
