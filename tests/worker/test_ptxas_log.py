"""Is the assembler's log read right, and does its advice against a kernel reject the schedule?"""

from __future__ import annotations

from pathlib import Path

import pytest

from search_space.family import BuildSpec
from service.store.enums import TrialReason
from worker.compile import compile_kernel
from worker.compile.ptxas_log import SERIOUS, EntryResources, parse, tidy
from worker.errors import CompileFailure

# As NVRTC 13.5 wrote it, but for the names.
LOG = """\
ptxas info    : 4 bytes gmem, 8 bytes cmem[4]
ptxas info    : Compiling entry function 'gemm' for 'sm_80'
ptxas info    : Function properties for gemm
ptxas         .     48 bytes stack frame, 40 bytes spill stores, 52 bytes spill loads
ptxas info    : Used 238 registers, used 2 barriers, 48 bytes cumulative stack size, 1024 bytes smem, \
416 bytes cmem[0], 16 bytes cmem[2]
ptxas info    : Compile time = 125.066 ms
ptxas info    : Compiling entry function 'reduce' for 'sm_80'
ptxas info    : Function properties for reduce
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
ptxas info    : Compile time = 3.847 ms
ptxas info    : Function properties for _Z1fPf
ptxas         .     8 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads
"""


def test_every_number_of_every_entry() -> None:
    report = parse(LOG)
    assert report.entries == {
        "gemm": EntryResources(
            registers=238,
            barriers=2,
            stack_bytes=48,
            spill_stores_bytes=40,
            spill_loads_bytes=52,
            static_smem_bytes=1024,
            constant_bytes=432,
        ),
        "reduce": EntryResources(registers=12),
    }
    assert report.functions == {"_Z1fPf": EntryResources(stack_bytes=8, spill_loads_bytes=4)}
    assert report.spill_bytes == 40 + 52 + 4
    assert report.advice == ()


def test_what_differs_from_run_to_run_is_left_out() -> None:
    assert "Compile time" not in tidy(LOG)
    assert parse(tidy(LOG)) == parse(LOG)
    assert tidy("\n\n") == ""


@pytest.mark.parametrize("code", ["C7504", "C7508", "C7509", "C7510", "C7511", "C7514", "C7515", "C7602"])
def test_the_codes_that_refuse_a_schedule(code: str) -> None:
    report = parse(f"ptxas info    : ({code}) Potential Performance Loss: why\n" * 2 + LOG)
    assert report.serious == ((code, f"ptxas info    : ({code}) Potential Performance Loss: why"),)
    assert len(SERIOUS) == 8


def test_other_advice_is_kept_and_refuses_nothing() -> None:
    report = parse("ptxas info    : (C7517) wgmma.wait_group is injected\n")
    assert report.serious == ()
    assert [code for code, _ in report.advice] == ["C7517"]


_DESCRIPTORS = "float *x, unsigned long long da, unsigned long long db"


def _wgmma(n: int) -> str:
    """One asynchronous matrix instruction of m64 n k16 with its n / 2 accumulators a thread."""
    count = n // 2
    names = ",".join(f"%{i}" for i in range(count))
    values = ",".join(f'"+f"(d[{i}])' for i in range(count))
    return (
        'asm volatile("{ .reg .pred p; setp.ne.b32 p, %' + str(count + 2) + ", 0; "
        f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{names}}}, %{count}, %{count + 1}, p, "
        f'1, 1, 0, 0; }}" : {values} : "l"(da), "l"(db), "r"(1));\n'
    )


def _kernel(threads: int, n: int, between: str) -> str:
    return (
        f'extern "C" __global__ void __launch_bounds__({threads}) gemm({_DESCRIPTORS}) {{\n'
        f"float d[{n // 2}]; for (int i = 0; i < {n // 2}; i++) d[i] = x[i];\n"
        'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n'
        f"{_wgmma(n)}{between}{_wgmma(n)}"
        'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");\n'
        'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");\n'
        f"for (int i = 0; i < {n // 2}; i++) x[i * 128 + threadIdx.x] = d[i];\n}}\n"
    )


_IGNORED = """extern "C" __global__ void gemm(float *x) {
    if (threadIdx.x < 128) { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); x[0] = 1; }
    else { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); x[1] = 2; }
}
"""
REAL = {
    "C7508": (_IGNORED, "setmaxnreg"),
    "C7511": (_kernel(128, 64, "d[3] = d[3] * 2.0f + 1.0f;\n"), "serialized"),
    "C7602": (_kernel(1024, 256, ""), "Insufficient registers"),
}


@pytest.mark.parametrize("code", REAL)
def test_a_kernel_that_ptxas_advises_against_is_refused_with_that_reason(tmp_path: Path, code: str) -> None:
    source = tmp_path / "kernels" / "cuda" / "gemm" / "x.cu"
    source.parent.mkdir(parents=True)
    source.write_text(REAL[code][0])
    with pytest.raises(CompileFailure) as caught:
        compile_kernel(
            BuildSpec("cuda/gemm/x.cu", "sm_90a", entries=("gemm",)),
            home=tmp_path / "h",
            root=tmp_path / "kernels",
        )
    assert caught.value.reason is TrialReason.SPILLS
    assert code in caught.value.message
    assert REAL[code][1] in caught.value.message
    assert code in str(caught.value.evidence["log"])
