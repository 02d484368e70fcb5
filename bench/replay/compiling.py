"""How does a schedule get an artifact when nothing is compiled? Its bytes name its values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256

from bench.replay.device import MARK
from search_space.schedule import Schedule, Value
from service.store.records import CompileClaim, Failed
from worker.compile import Artifact
from worker.compiling import CompileWorker, compile_outcome, plan_task

_TOOLCHAIN = {"compiler": "replay", "version": MARK["replay"]}


class ReplayCompiler(CompileWorker):
    """Claims, judges and finishes as the compile worker does; no compiler runs in between."""

    def _work(self, claims: list[CompileClaim], slots: int) -> None:
        known = self._devices({claim.device_key for claim in claims if claim.device_key is not None})
        for claim in claims:
            task = plan_task(claim, known)
            if isinstance(task, Failed):
                self._finish(claim, task, None)
                continue
            built = _artifact("kernel", claim.arch, Schedule.from_json(claim.schedule).values())
            pool = _artifact("pool", claim.arch, {})
            self._finish(claim, compile_outcome(task, built, pool), pool)


def _artifact(kind: str, arch: str, values: Mapping[str, Value]) -> Artifact:
    data = json.dumps({**MARK, "kind": kind, "values": values}, sort_keys=True).encode()
    recipe = {**MARK, "kind": kind, "source": "replay"}
    return Artifact(sha256(data).hexdigest(), data, kind, arch, ("run",), recipe, _TOOLCHAIN, "", {}, 0.0)
