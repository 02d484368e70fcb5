"""How is a run in the emulator told to a person: verdict, what was run, why it is slow, where it is wrong?

One text for the API, the command line and the dashboard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from search_space.schedule import Schedule
from service.store.enums import EmulationScope, EmulationState, TrialReason, TrialState
from service.store.records import EmulationRecord, TrialRecord

_WORDS = {
    EmulationState.QUEUED: "waits for an emulate worker",
    EmulationState.RUNNING: "runs in the emulator now",
    EmulationState.PASSED: "right in the emulator",
    EmulationState.FAILED: "WRONG in the emulator",
    EmulationState.UNDECIDED: "not decided: the emulator could not run it to its end",
}
# In this order, and then whatever else was counted.
_FIRST = (
    "mma",
    "mma_flops",
    "bank_conflicts",
    "shared_requests",
    "shared_wavefronts",
    "global_requests",
    "global_sectors",
    "sectors_per_request",
    "bytes",
    "instructions",
    "waits",
)
_FAULTS_SHOWN = 12


# Of these nobody runs a verdict any more that they may still lack.
_OUT = (TrialState.CANCELLED, TrialState.FAILED, TrialState.CULLED, TrialState.REJECTED)


def unrun(run: EmulationRecord, trial: TrialRecord, *, over: bool) -> str | None:
    """Why a run that has no verdict yet is not waited for by this trial; None where there is one, or it is
    still waited for. `over`: the trial's problem, or its job, has ended."""
    if run.state not in (EmulationState.QUEUED, EmulationState.RUNNING):
        return None
    if trial.state in _OUT:
        return TrialReason.JOB_ENDED.doc if trial.reason is None else trial.reason.doc
    return TrialReason.JOB_ENDED.doc if over else None


def short(run: EmulationRecord | None, trial: TrialRecord, *, over: bool) -> str:
    """The verdict on a trial in a few words; `over` as for `unrun`."""
    if run is None:
        return "not emulated"
    if unrun(run, trial, over=over) is not None:
        return f"not emulated: {trial.reason or TrialReason.JOB_ENDED}".replace("_", " ")
    if run.state is EmulationState.PASSED:
        return "right, run itself" if run.trial_id == trial.id else f"right, by trial {run.trial_id}"
    why = "" if run.reason is None else f": {run.reason}"
    return {EmulationState.FAILED: "wrong", EmulationState.UNDECIDED: "undecided"}.get(
        run.state, str(run.state)
    ) + why


def long(run: EmulationRecord, trial: TrialRecord, *, over: bool) -> str:
    """Everything, over several lines; `over` as for `unrun`."""
    return "\n".join(_lines(run, trial, over))


def _lines(run: EmulationRecord, trial: TrialRecord, over: bool) -> Iterator[str]:
    why_not = unrun(run, trial, over=over)
    if why_not is not None:
        yield f"not emulated: {why_not}"
    else:
        reason = "" if run.reason is None else f" ({run.reason}: {run.reason.doc})"
        yield f"{_WORDS[run.state]}{reason}"
        yield f"  {_whose(run, trial.id)}"
        verb = "to run" if run.state is EmulationState.QUEUED else "run"
        yield f"  schedule {verb}: {_schedule(run.schedule)}"
    named = (f"{name} {value}" for name, value in run.structure.items() if name != "emulator")
    yield "  structure: " + ", ".join(named)
    if run.seconds is not None:
        runs = "1 run" if len(run.checks) == 1 else f"{len(run.checks)} runs"
        yield f"  {runs} in {run.seconds:.1f} s, seeds {_listed(run.seeds)}"
    for check in run.checks:
        yield f"    {_check(check)}"
    if run.max_error is not None and run.bound is not None:
        # Each run has a bound of its own: another may have the larger error.
        yield f"  nearest to its bound: error {run.max_error:.3g} of {run.bound:.3g} allowed"
    message = run.evidence.get("message")
    if message and run.state is not EmulationState.PASSED:
        yield f"  {message}"
    yield from _faults(run.evidence.get("faults"))
    yield from _counters(run.counters)


def _whose(run: EmulationRecord, trial_id: int) -> str:
    done = {EmulationState.QUEUED: "is to be run", EmulationState.RUNNING: "is being run"}.get(
        run.state, "was run"
    )
    if run.trial_id == trial_id:
        own = f"this trial's own schedule {done}"
        if run.scope is EmulationScope.STRUCTURE:
            return f"{own}; it speaks for every trial of its structure under this toolchain"
        return own
    return f"the verdict of its structure: trial {run.trial_id} {done}"


def _schedule(schedule: Mapping[str, Any]) -> str:
    try:
        return Schedule.from_json(schedule).one_line()
    except (ValueError, KeyError, TypeError):
        return str(dict(schedule))


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "none"


def _check(check: Mapping[str, Any]) -> str:
    """One problem in one order."""
    sizes = "x".join(str(check[name]) for name in ("m", "n", "k") if name in check)
    batch = f" batch {check['batch']}" if check.get("batch", 1) != 1 else ""
    scalars = ", ".join(f"{name} {check[name]:g}" for name in ("alpha", "beta") if name in check)
    found = "right" if check.get("passed") else "WRONG"
    error = check.get("max_error")
    told = f", error {error:.3g}" if isinstance(error, int | float) else ""
    return f"{sizes}{batch}, {scalars}, {check.get('order', '')}: {found}{told}"


# ---------------------------------------------------------------- faults


def _faults(faults: Any) -> Iterator[str]:
    if not isinstance(faults, Sequence) or not faults:
        return
    yield f"  faults ({len(faults)}):"
    for fault in faults[:_FAULTS_SHOWN]:
        if isinstance(fault, Mapping):
            yield f"    {_place(fault)}"
            yield f"      {fault.get('message', '')}"
    if len(faults) > _FAULTS_SHOWN:
        yield f"    and {len(faults) - _FAULTS_SHOWN} more"


def _place(fault: Mapping[str, Any]) -> str:
    """`race at /rooftile/kernels/cuda/gemm/gemm_sm80.cu:120, block 0 1 0, warp 3, buffer a, stage 2`."""
    words = [str(fault.get("kind", "fault"))]
    if fault.get("file") or fault.get("line"):
        words[0] += f" at {fault.get('file') or 'line'}:{fault.get('line', '?')}"
    elif fault.get("ptx_line"):
        words[0] += f" at line {fault['ptx_line']} of the PTX"
    if fault.get("cta"):
        words.append("block " + " ".join(map(str, fault["cta"])))
    words += [
        f"{name.replace('_', ' ')} {fault[name]}"
        for name in ("warp", "lane", "buffer", "stage", "other_line")
        if fault.get(name) is not None
    ]
    if fault.get("count", 1) != 1:
        words.append(f"{fault['count']} times")
    return ", ".join(words)


# ---------------------------------------------------------------- counters


def _counters(counters: Mapping[str, Any] | None) -> Iterator[str]:
    """Role by role, what explains the speed."""
    if not counters:
        return
    sizes = "x".join(str(counters[name]) for name in ("m", "n", "k") if name in counters)
    yield f"  counted on {sizes}, copies {counters.get('order', '')}:"
    roles = counters.get("roles")
    if not isinstance(roles, Mapping):
        return
    for role, sums in roles.items():
        if isinstance(sums, Mapping):
            yield f"    role {role}"
            shown = {**_per_request(sums), **sums}
            names = [*(n for n in _FIRST if n in shown), *(n for n in shown if n not in _FIRST)]
            for name in names:
                yield f"      {name.replace('_', ' '):20} {_value(shown[name])}"


def _per_request(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Sectors of a global request: 4 for 4 bytes a lane is the least, 32 is one for each lane."""
    requests, sectors = sums.get("global_requests"), sums.get("global_sectors")
    if not isinstance(requests, Mapping) or not isinstance(sectors, Mapping):
        return {}
    found = {name: sectors[name] / count for name, count in requests.items() if count and name in sectors}
    return {"sectors_per_request": found} if found else {}


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_value(one)}" for name, one in value.items())
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
