"""Who won a race: a pure function of its results, of what is served today, and of the noise.

A kernel of ours is released when it beats what is served by more than the noise; all within the noise form
the tie set, and ties break the same way every time (smaller workspace, then the schedule's key). The
vendor's kernel is served where it is faster by more than the noise, and where nothing of ours is served yet
and the best of ours is not faster: a race too noisy to tell gives no reason to leave what people have.
Where the vendor's kernel could not be raced, ours is released and says so; the vendor's stays served where it
was. What was disturbed is never promoted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from service.store.enums import EntrantRole, Winner
from service.store.records import EntrantResult

# Below half a percent two medians of ours are not told apart, whatever a quiet machine says.
NOISE_LEAST = 0.005
LEAST_ROUNDS = 3
UNRACED = "unraced: the vendor's kernel could not be raced"
"""In the reason of a release of ours that nobody compared with the Baseline."""


class Verb(Enum):
    """What is to be done after a race."""

    PUBLISH = "publish"
    KEEP = "keep"
    """What is served today stays."""
    AGAIN = "again"
    """Disturbed: race once more."""
    NEXT = "next"
    """Every finalist failed its re-check: race the ones behind them."""


@dataclass(frozen=True)
class Facts:
    """What the decision needs to know of a trial that raced."""

    trial_id: int
    schedule_key: str
    artifact_sha256: str | None
    toolchain_key: str | None
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Served:
    """What is served today."""

    winner: Winner
    trial_id: int | None
    schedule_key: str | None
    artifact_sha256: str | None
    toolchain_key: str | None


@dataclass(frozen=True)
class Decision:
    verb: Verb
    reason: str
    winner: Winner | None = None
    trial_id: int | None = None
    time_us: float | None = None
    baseline_us: float | None = None
    noise: Mapping[str, Any] = field(default_factory=dict)
    tie_set: tuple[Mapping[str, Any], ...] = ()
    failures: tuple[str, ...] = ()
    """One sentence for each entrant that failed its re-check."""


def decide(
    entrants: Sequence[EntrantResult],
    facts: Mapping[int, Facts],
    served: Served | None,
    measured_noise: Mapping[str, Any] | None = None,
) -> Decision:
    """What follows from one race that ran to its end."""
    failures = tuple(_failure(e) for e in entrants if not _passed(e) and e.role is not EntrantRole.TWIN)
    ours = [e for e in entrants if _ours(e) and _passed(e)]
    baseline = next((e for e in entrants if e.role is EntrantRole.BASELINE and _passed(e)), None)
    plain = Decision(Verb.NEXT, "", baseline_us=_time(baseline), failures=failures)
    if not ours:
        return replace(plain, reason="; ".join(failures) or "no kernel of ours finished the race")
    best = _fastest(ours, facts)
    noise, numbers = noise_of(entrants, best, measured_noise)
    plain = replace(plain, noise=numbers)
    disturbed = [e.name for e in (best, baseline) if e is not None and _contended(e)]
    if disturbed:
        reason = f"other work on the device disturbed {' and '.join(disturbed)}"
        return replace(plain, verb=Verb.AGAIN, reason=reason)
    clean = [e for e in ours if not _contended(e)]
    ties = [e for e in clean if ratio(e, best) <= 1 + noise]
    plain = replace(plain, tie_set=tuple(_tie(e, facts) for e in ties))
    # How long the vendor's kernel takes over how long the best of ours does.
    gain = None if baseline is None else ratio(baseline, best)
    if baseline is not None and gain is not None:
        vendor = replace(plain, winner=Winner.BASELINE, time_us=_median(baseline))
        held = served is not None and served.winner is Winner.BASELINE
        if gain * (1 + noise) < 1:
            reason = f"the vendor's kernel is {1 / gain:.2f} times as fast as the best of ours"
            return replace(vendor, verb=Verb.KEEP if held else Verb.PUBLISH, reason=reason)
        if served is None and gain < 1:
            reason = "the best of ours is not faster than the vendor's kernel, within the noise"
            return replace(vendor, verb=Verb.PUBLISH, reason=reason)
        if held and gain <= 1 + noise:
            reason = "the best of ours beats the vendor's kernel, which is served, by less than the noise"
            return replace(vendor, verb=Verb.KEEP, reason=reason)
    # Within the tie set, rather one that is not slower than the vendor's kernel beyond the noise itself.
    safe = [e for e in ties if baseline is None or ratio(e, baseline) <= 1 + noise] or [best]
    chosen = min(safe, key=lambda e: _tie_key(e, facts))
    publish = replace(
        plain, verb=Verb.PUBLISH, winner=Winner.TRIAL, trial_id=chosen.trial_id, time_us=_median(chosen)
    )
    if gain is None and served is not None and served.winner is Winner.BASELINE:
        reason = "the vendor's kernel, which is served, could not be raced"
        return replace(plain, verb=Verb.KEEP, winner=Winner.BASELINE, reason=reason)
    if served is None or served.winner is Winner.BASELINE:
        if baseline is None:
            return replace(publish, reason=f"the fastest of this search; {UNRACED}")
        # Of the one that is served, which need not be the fastest of its tie set.
        times = f"{ratio(baseline, chosen):.2f} times as fast as the vendor's kernel"
        return replace(publish, reason=f"{times}, by the median of the rounds")
    found = _against_incumbent(publish, best, clean, facts, served, noise)
    if gain is None and found.verb is Verb.PUBLISH:
        return replace(found, reason=f"{found.reason}; {UNRACED}")
    return found


def _against_incumbent(
    publish: Decision,
    best: EntrantResult,
    ours: Sequence[EntrantResult],
    facts: Mapping[int, Facts],
    served: Served,
    noise: float,
) -> Decision:
    """A kernel of ours is served: it stays unless it is beaten, or its toolchain is no longer in use."""
    incumbent = next((e for e in ours if _is_served(facts.get(e.trial_id or 0), served)), None)
    if incumbent is None:
        return replace(publish, reason="what was served until now failed in the race, or could not run in it")
    gain = ratio(incumbent, best)
    if gain > 1 + noise:
        return replace(publish, reason=f"{gain:.3f} times as fast as what was served until now")
    mine = facts.get(publish.trial_id or 0)
    others = [one for e in ours if e is not incumbent and (one := facts.get(e.trial_id or 0)) is not None]
    stale = bool(others) and all(one.toolchain_key != served.toolchain_key for one in others)
    if stale and mine is not None and mine.toolchain_key != served.toolchain_key:
        reason = "as fast as what was served until now, and built by the present toolchain"
        return replace(publish, reason=reason)
    reason = f"nothing beats what is served by more than the noise of {noise * 100:.1f} %"
    return replace(
        publish, verb=Verb.KEEP, reason=reason, trial_id=incumbent.trial_id, time_us=_median(incumbent)
    )


# ---------------------------------------------------------------- speed and noise


def ratio(one: EntrantResult, other: EntrantResult) -> float:
    """How many times as long `one` takes: the median over the rounds both ran, so that what changes slowly
    on the machine cancels; of their medians where rounds are not known."""
    pairs = [
        a / b
        for a, b in zip(_rounds(one), _rounds(other), strict=False)
        if a is not None and b is not None and b > 0
    ]
    if len(pairs) >= LEAST_ROUNDS:
        return statistics.median(pairs)
    return _median(one) / _median(other)


def _rounds(entrant: EntrantResult) -> Sequence[float | None]:
    rounds = () if entrant.measurement is None else entrant.measurement.environment.get("round_medians_us")
    return rounds if isinstance(rounds, (list, tuple)) else ()


def _fastest(ours: Sequence[EntrantResult], facts: Mapping[int, Facts]) -> EntrantResult:
    """By ratios to the one with the smallest median."""
    first = min(ours, key=lambda e: (_median(e), _tie_key(e, facts)))
    return min(ours, key=lambda e: (ratio(e, first), _tie_key(e, facts)))


def noise_of(
    entrants: Sequence[EntrantResult], best: EntrantResult, measured: Mapping[str, Any] | None = None
) -> tuple[float, dict[str, Any]]:
    """The band, as a share, inside which two times count as equal; and where it comes from.

    What the worker found by running the same binary twice; without that, the larger of how far the twin's
    time is from its double's and of twice the standard error of a difference of two medians.
    """
    given = (measured or {}).get("relative")
    known = isinstance(given, (int, float)) and math.isfinite(given) and given > 0
    relative = float(given) if known and given is not None else None
    twin = next((e for e in entrants if e.role is EntrantRole.TWIN and _passed(e)), None)
    double = None
    if twin is not None:
        double = next((e for e in entrants if _ours(e) and e.trial_id == twin.trial_id and _passed(e)), None)
    apart = None if twin is None or double is None else abs(math.log(ratio(twin, double)))
    sampling = _median_error(best)
    band = relative if relative is not None else max(apart or 0.0, 2 * math.sqrt(2) * (sampling or 0.0))
    band = max(NOISE_LEAST, band)
    numbers = {"band": band, "twin": apart, "median_error": sampling, "least": NOISE_LEAST}
    return band, {**numbers, "race": dict(measured or {})}


def _median_error(entrant: EntrantResult) -> float | None:
    """Standard error of the median as a share of it, from the samples' quantiles."""
    assert entrant.measurement is not None
    m = entrant.measurement
    if m.q10_us is None or m.q90_us is None or len(m.samples_us) < 3:
        return None
    # A normal spread would have 2.56 deviations between these quantiles; the median of n samples has
    # 1.25 deviations over the root of n as its standard error.
    deviation = (m.q90_us - m.q10_us) / 2.56
    return 1.25 * deviation / math.sqrt(len(m.samples_us)) / m.median_us


# ---------------------------------------------------------------- entrants


def _ours(entrant: EntrantResult) -> bool:
    return entrant.trial_id is not None and entrant.role is not EntrantRole.TWIN


def _passed(entrant: EntrantResult) -> bool:
    """Right, and with a time that can be one. The Baseline is verified too, where it says so."""
    if entrant.failure is not None or entrant.measurement is None:
        return False
    if not (math.isfinite(entrant.measurement.median_us) and entrant.measurement.median_us > 0):
        return False
    if entrant.verdict is None:
        return entrant.role is EntrantRole.BASELINE
    return entrant.verdict.passed


def _median(entrant: EntrantResult) -> float:
    assert entrant.measurement is not None
    return entrant.measurement.median_us


def _time(entrant: EntrantResult | None) -> float | None:
    return None if entrant is None else _median(entrant)


def _contended(entrant: EntrantResult) -> bool:
    return entrant.measurement is not None and entrant.measurement.contended


def _failure(entrant: EntrantResult) -> str:
    who = entrant.name if entrant.trial_id is None else f"{entrant.name} (trial {entrant.trial_id})"
    if entrant.failure is not None:
        return f"{who} failed its re-check: {entrant.failure.reason}"
    if entrant.verdict is not None and not entrant.verdict.passed:
        return f"{who} failed its re-check: wrong result"
    return f"{who} has no time"


def _tie_key(entrant: EntrantResult, facts: Mapping[int, Facts]) -> tuple[int, str]:
    one = facts.get(entrant.trial_id or 0)
    return (0, "") if one is None else (one.workspace_bytes, one.schedule_key)


def _tie(entrant: EntrantResult, facts: Mapping[int, Facts]) -> dict[str, Any]:
    one = facts.get(entrant.trial_id or 0)
    key = None if one is None else one.schedule_key
    return {"trial_id": entrant.trial_id, "schedule_key": key, "time_us": _median(entrant)}


def _is_served(one: Facts | None, served: Served) -> bool:
    return (
        one is not None
        and one.schedule_key == served.schedule_key
        and one.artifact_sha256 == served.artifact_sha256
    )
