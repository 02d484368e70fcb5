"""What does it cost to compile a candidate, beside Triton and CUTLASS, and how many schedules compile?

    python -m bench.compile [--quick] [--json FILE] [--repeats N] [--schedules N]

Cost: for each schedule in bench/compiling/points.py (bf16; gemm_sm80 on sm_80, gemm_sm90 on sm_90a), ours and
Triton's compile of the same tile, stages and warps in turns, on one core, to PTX and cubin. CPU-seconds, not
wall time. Ours as a worker pays it: gathering sources, the request, the whole child with NVRTC, the gate, the
write to a fresh cache. Triton's in a process that has imported it and compiled something; its cache is off;
its assembler counts. CUTLASS 3's warp-specialised kernel goes through nvcc, two tiles, once each.
Share: schedules drawn uniformly from the legal space of each family, over several dtypes and layouts; what
does not compile is listed with its reason. Exit 0 when it measured, 1 when it could not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.common import BenchError, bench_lock, environment, write
from bench.compiling.costs import costs, cutlass_costs, probe_cutlass, rate
from bench.compiling.points import COMPARISONS
from bench.compiling.shares import SEED, SPACES, share
from worker.compile.capacity import compile_slots
from worker.compile.nvrtc import find_nvrtc
from worker.errors import CompilerMissingError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.compile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="four schedules a family, no CUTLASS: under 3 minutes"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--repeats", type=int, default=None, help="compiles of each schedule by each compiler"
    )
    parser.add_argument("--schedules", type=int, default=None, help="drawn from each family's legal space")
    args = parser.parse_args(argv)
    repeats = args.repeats or (3 if args.quick else 7)
    drawn = args.schedules or (20 if args.quick else 300)
    try:
        with bench_lock():
            figures, rows, env = measure(repeats, drawn, quick=args.quick)
    except (BenchError, CompilerMissingError) as error:
        print(f"bench.compile: {error}", file=sys.stderr)
        return 1
    write(args.json, figures, rows, env)
    print(json.dumps({"figures": figures}, indent=1))
    return 0


def measure(
    repeats: int, drawn: int, *, quick: bool
) -> tuple[dict[str, float | int | None], list[dict[str, Any]], dict[str, Any]]:
    """All costs, the rates on all cores, and the share of each family."""
    for comparison in COMPARISONS:
        comparison.triton()  # one that is missing is told now, not when its turn comes
    if not quick:
        probe_cutlass()
    env = environment(quick=quick, repeats=repeats, schedules_per_family=drawn, seed=SEED)
    archs = ("sm_80", "sm_90a", "sm_70")
    env["toolchains"] = {arch: f"nvrtc {find_nvrtc(arch).version}" for arch in archs}
    from bench.peers.triton_matmul import VERSION

    env["triton"] = VERSION
    rows: list[dict[str, Any]] = []
    figures: dict[str, float | int | None] = {}
    with tempfile.TemporaryDirectory(prefix="rooftile-bench-") as folder:
        for comparison in COMPARISONS:
            points = comparison.chosen(quick)
            mine = costs(comparison, points, repeats, Path(folder, comparison.arch))
            rows += mine
            figures |= cost_figures(comparison.suffix, mine)
            there = rate(comparison, points, repeats, Path(folder, comparison.arch))
            figures[f"candidates_per_s{comparison.suffix}"] = round(there, 3)
        env["compile_slots"] = compile_slots()
        by_nvcc = [] if quick else cutlass_costs(Path(folder))
        rows += by_nvcc
        figures["cutlass_ratio"] = min(row["ratio"] for row in by_nvcc) if by_nvcc else None
        shares = [share(name, drawn, Path(folder)) for name in SPACES]
    return figures | share_figures(shares), [*rows, *shares], env


def cost_figures(suffix: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Medians over the schedules of one comparison."""
    return {
        f"cpu_s_per_candidate{suffix}": round(statistics.median(row["cpu_s"] for row in rows), 4),
        f"triton_ratio{suffix}": round(statistics.median(row["ratio"] for row in rows), 3),
        f"triton_ratio_min{suffix}": round(min(row["ratio"] for row in rows), 3),
    }


def share_figures(shares: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The share of all that was drawn, and of each family."""
    drawn = sum(row["drawn"] for row in shares)
    return {
        "compiled_share": round(sum(row["compiled"] for row in shares) / drawn, 4) if drawn else None,
        **{f"compiled_share_{row['family']}": row["share"] for row in shares},
    }


if __name__ == "__main__":
    sys.exit(main())
