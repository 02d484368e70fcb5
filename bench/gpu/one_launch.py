"""One launch of one kernel, for a profiler: `python -m bench.gpu.one_launch ORDER.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rooftile.launch.cuda import CudaKernel
from rooftile.plan import LaunchPlan
from rooftile.problem import Gemm, parse_problem

from worker.verify.cases import Case
from worker.verify.device_checks import DeviceTarget, new_workspace, prepare_device_case, workspace_bytes
from worker.verify.device_memory import CupyMemory


def main() -> int:
    order = json.loads(Path(sys.argv[1]).read_text())
    problem = parse_problem(order["problem"])
    assert isinstance(problem, Gemm)
    # Its reference is none of a profiler's business: no flops, no product.
    case = Case("profiled", problem, "start", 256, 1, 1.0, 0.0)
    memory = CupyMemory()
    kernel = CudaKernel(Path(order["path"]), LaunchPlan.from_json(order["plan"]))
    prepared = prepare_device_case(case, memory)
    size = workspace_bytes(kernel, case)
    target = DeviceTarget(kernel, prepared, memory, new_workspace(size, memory) if size else None)
    memory.synchronize()
    target.run_once()
    memory.synchronize()
    target.check()
    return 0


if __name__ == "__main__":
    sys.exit(main())
