"""How does a program ask a Rooftile service for tuning jobs and for kernels?

client = rooftile.Client()                          # http://127.0.0.1:8417, or ROOFTILE_URL
client.submit(rooftile.Gemm(8, 4096, 4096, "f32")).wait()
kernel = client.kernel(rooftile.Gemm(8, 4096, 4096, "f32"))
kernel(a, b, out=c)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rooftile.best import Best
from rooftile.cache import ArtifactCache
from rooftile.errors import DeviceError, ServiceError, ServiceUnreachable
from rooftile.http import Transport
from rooftile.job import Job, pages
from rooftile.kernel import Kernel, load_kernel
from rooftile.problem import Problem, parse_problem

__all__ = ["Best", "Client", "Job", "Kernel"]

ProblemLike = Problem | Mapping[str, Any]


class Client:
    """One service. Makes no connection until something is asked. May be shared by threads."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, cache: ArtifactCache | None = None
    ) -> None:
        self._transport = Transport(url, token)
        self._cache = cache or ArtifactCache()

    @property
    def url(self) -> str:
        """The service's address."""
        return self._transport.url

    # -- jobs -------------------------------------------------------------------------------------------

    def submit(
        self,
        problem: ProblemLike | Sequence[ProblemLike],
        *,
        sweep: Mapping[str, Sequence[int] | Mapping[str, Any]] | None = None,
        target: Mapping[str, Any] | None = None,
        device: str | None = None,
        budget: Mapping[str, Any] | None = None,
        policy: Mapping[str, str] | None = None,
        seed: int | None = None,
        force: bool = False,
        priority: int | None = None,
        families: Sequence[str] | None = None,
        params: Mapping[str, Any] | None = None,
        emulate: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Ask for a tuning job and return at once. A list of problems makes one job of them all.

        sweep            {"m": [1, 2, 4]}: the problem at each of these sizes; {"m": {"from": 1, "to": 512}}:
                         at some of them, which the job chooses, with a table for all
        target, device   {"device": key}, {"devices": [...]} or {"arch": name}; `device` is short for one
        budget           {"trials", "seconds", "device_seconds"} of the whole job
        policy           {"cache": "cold" | "warm", "launch": "graph" | "eager"}
        idempotency_key  a request sent twice with the same key makes one job
        """
        if isinstance(problem, Sequence):
            body: dict[str, Any] = {"problems": [_entry(one, sweep) for one in problem]}
        else:
            body = _entry(problem, sweep)
        options = {
            "target": target, "device": device, "budget": budget, "policy": policy, "seed": seed,
            "force": force or None, "priority": priority, "families": families, "params": params,
            "emulate": emulate,
        }  # fmt: skip
        body |= {name: value for name, value in options.items() if value is not None}
        return self.submit_body(body, idempotency_key=idempotency_key)

    def submit_body(self, body: Mapping[str, Any], *, idempotency_key: str | None = None) -> Job:
        """The same with the body of POST /v1/jobs as it is."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        data = self._transport.post("/v1/jobs", body, headers).data
        if not isinstance(data, Mapping) or type(data.get("id")) is not int:
            raise ServiceUnreachable("the answer to POST /v1/jobs has no id")
        return Job(self._transport, data["id"], data)

    def job(self, job_id: int | str) -> Job:
        """A job by its id."""
        return Job(self._transport, job_id).refresh()

    def jobs(self, state: str | None = None, op: str | None = None) -> Iterator[Mapping[str, Any]]:
        """Every job, newest first, page by page."""
        yield from pages(self._transport, "/v1/jobs", "jobs", state=state, op=op)

    def trial(self, trial_id: int) -> Mapping[str, Any]:
        """One schedule that was tried, with all of its evidence: verdicts, samples, the emulator's word."""
        data = self._transport.get(f"/v1/trials/{trial_id}").data
        if not isinstance(data, Mapping) or "state" not in data:
            raise ServiceUnreachable(f"the answer to /v1/trials/{trial_id} is no trial")
        return data

    # -- kernels ----------------------------------------------------------------------------------------

    def best(
        self, problem: ProblemLike, device: str | None = None, policy: Mapping[str, str] | None = None
    ) -> Best:
        """What the service would have this machine run. `device` is this machine's own unless given."""
        body: dict[str, Any] = {"problem": _json(problem)}
        key = device or local_device_key()
        if key is not None:
            body["device"] = key
        if policy is not None:
            body["policy"] = dict(policy)
        return Best.from_json(self._transport.post("/v1/best", body).data)

    def kernel(
        self,
        problem: ProblemLike,
        device: str | None = None,
        policy: Mapping[str, str] | None = None,
        *,
        threads: int | None = None,
    ) -> Kernel:
        """The problem's kernel, fetched, checked and loaded; the Baseline where that is served, and where the
        service knows nothing (`kernel.level` and `kernel.reason` say so). `threads` is every physical core
        that this process may use unless given."""
        parsed = parse_problem(problem) if isinstance(problem, Mapping) else problem
        best = self.best(parsed, device, policy)
        return load_kernel(parsed, best, self._cache, self._transport, threads)

    def explain(
        self, problem: ProblemLike, device: str | None = None, policy: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Everything the service knows of a problem: the lookup's answer under `best`, and under `problem`
        its releases on every device (None when it was never asked for)."""
        parsed = parse_problem(problem) if isinstance(problem, Mapping) else problem
        best = self.best(parsed, device, policy)
        known: Any = None
        try:
            known = self._transport.get(f"/v1/problems/{parsed.key}").data
        except ServiceError as error:
            if error.status != 404:
                raise
        return {"best": dict(best.data), "problem": known}


def local_device_key() -> str | None:
    """The key of the only GPU at hand, without one that of the CPU; None where there are GPUs of several
    kinds, or no kernel of ours runs, and the service then picks."""
    from rooftile.device import local_cpu
    from rooftile.gpu_detect import local_gpus

    try:
        keys = {gpu.key for gpu in local_gpus()}
        return keys.pop() if len(keys) == 1 else None
    except DeviceError:
        pass
    try:
        return local_cpu().key
    except DeviceError:
        return None


def _json(problem: ProblemLike) -> dict[str, Any]:
    return dict(problem) if isinstance(problem, Mapping) else problem.to_json()


def _entry(
    problem: ProblemLike, sweep: Mapping[str, Sequence[int] | Mapping[str, Any]] | None
) -> dict[str, Any]:
    if not sweep:
        return {"problem": _json(problem)}
    # A Problem object has every size; the swept ones are left out of the request.
    swept = () if isinstance(problem, Mapping) else tuple(sweep)
    entry = {name: value for name, value in _json(problem).items() if name not in swept}
    asked = {
        name: dict(values) if isinstance(values, Mapping) else list(values) for name, values in sweep.items()
    }
    return {"problem": entry, "sweep": asked}
