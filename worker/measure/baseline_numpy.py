"""How does the vendor's kernel run in a race: numpy's BLAS, at its best, proved like a candidate?

`python -m worker.measure.baseline_numpy` is a process of its own, started with a clean environment (what
slows OpenBLAS down is taken out) and as many threads as the device has cores; it makes its own inputs from
the same seeds, in buffers that lie like those of the candidates.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rooftile import baseline
from rooftile.launch.x86 import get_pool

from service.bus import die_with_parent
from worker.measure.blas import blas_facts
from worker.measure.calibration import Calibrator
from worker.measure.candidate import Proof, Tell, compare_all
from worker.measure.channel import LineReader, send
from worker.measure.entrant import serve
from worker.measure.policy import Policy
from worker.measure.problems import PreparedProblem, prepare
from worker.measure.timing import Rotor, Run
from worker.verify.arena import Region
from worker.verify.checks import CheckResult, Target
from worker.verify.prepared import as_matrix, strided

_STEP_LIMIT_S = 60.0


class NumpyRunner:
    """The Baseline as a race sees it."""

    def __init__(self, order: Mapping[str, Any], tell: Tell) -> None:
        tell({"phase": "prepare", "limit_s": 3 * _STEP_LIMIT_S})
        self._order = order
        self._tell = tell
        self._data: PreparedProblem = prepare(
            order["problem"],
            Policy.parse(order["policy"]),
            int(order["seed"]),
            order.get("llc_bytes"),
            with_neighbours=False,
        )
        self._targets: list[Target] = []
        self.proof = Proof([prepared.case.seed for prepared in self._data.mains])
        self.estimate_us = 0.0
        self.threads = int(order["threads"])

    def verify(self) -> None:
        """Against the same reference and bounds as a candidate; neighbours are numpy's own business."""
        for prepared in self._data.mains:
            target = Target(prepared, self._announce)
            bind_numpy(target)
            target.run()  # the first call makes OpenBLAS set up its buffers
            target.poison()
            self.estimate_us = target.run()
            found = target.check()
            self.proof.add(
                CheckResult(
                    prepared.case,
                    True,
                    self.estimate_us,
                    found.max_error,
                    found.norm_error,
                    prepared.bound.absolute,
                )
            )
            target.close()

    def rotor(self) -> Rotor:
        for prepared in self._data.sets:
            target = Target(prepared, self._announce)
            bind_numpy(target)
            self._targets.append(target)
        self._tell({"phase": "time", "limit_s": _STEP_LIMIT_S})
        return Rotor([target.run_once for target in self._targets], self._flusher())

    def _flusher(self) -> Run | None:
        buffer = self._data.flush
        if buffer is None:
            return None
        tool, pool, arch = (self._order.get(name) for name in ("tool_path", "pool_path", "arch"))
        if tool and pool and arch:
            # On one thread: workers of a second pool would spin beside OpenBLAS's when its turn comes.
            return Calibrator(Path(tool), get_pool(pool, 1), str(arch)).reader(buffer.base, buffer.nbytes)
        flat = buffer.data().view(np.uint64)
        return lambda: int(flat[::8].sum())

    def check_after(self) -> None:
        # BLAS is not asked to give the same bits for the same numbers at other addresses.
        compare_all([target for target in self._targets if target.runs], self.proof, bitwise=False)

    def facts(self) -> dict[str, Any]:
        return {**blas_facts(), "method": "numpy.matmul with out, as rooftile.baseline calls it"}

    def _announce(self, _regions: Iterable[Region]) -> None:
        self._tell({"phase": "verify", "limit_s": _STEP_LIMIT_S})


def bind_numpy(target: Target) -> None:
    """Make `target.launch` a run of the Baseline: matmul alone where that is all, else rooftile's code."""
    prepared = target.prepared
    case, problem = prepared.case, prepared.case.problem
    arrays = {name: strided(case, name, buffer.data()) for name, buffer in prepared.inputs.items()}
    arrays["out"] = target.output()
    epilogue = problem.epilogue
    bare = epilogue.bias is None and epilogue.activation is None and not epilogue.residual
    if (
        bare
        and case.alpha == 1.0
        and case.beta == 0.0
        and problem.dtype.a == problem.dtype.b == problem.dtype.c
    ):
        a, b, out = (as_matrix(case, name, arrays[name]) for name in ("a", "b", "out"))
        target.launch = partial(np.matmul, a, b, out=out)
    else:
        target.launch = partial(baseline.compute, problem, arrays, case.alpha, case.beta)


def main() -> int:
    die_with_parent(int(sys.argv[1]))
    # The protocol's pipes, before anything can print to them.
    answers = os.dup(1)
    os.dup2(2, 1)
    commands = LineReader(os.dup(0))
    line = commands.wait(_STEP_LIMIT_S)
    if line is None:
        return 1
    order = json.loads(line)

    def tell(message: Mapping[str, Any]) -> None:
        send(answers, message)

    last = serve(lambda: NumpyRunner(order, tell), tell, commands)
    if last is not None:
        tell(last)
    return 0


if __name__ == "__main__":
    sys.exit(main())
