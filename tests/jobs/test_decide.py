"""Who wins a race?"""

from __future__ import annotations

from typing import Any

import pytest
from support.store import failed, measurement, verdict

from service.jobs.decide import UNRACED, Decision, Facts, Served, Verb, decide
from service.store.enums import EntrantRole, TrialReason, Winner
from service.store.records import EntrantResult, MeasurementRecord

NOISE = {"relative": 0.02}


def runner(
    trial_id: int, time_us: float, role: EntrantRole = EntrantRole.FINALIST, **changes: Any
) -> EntrantResult:
    record = measurement(time_us, contended=changes.get("contended", False))
    if "rounds" in changes:
        record = MeasurementRecord(
            **{**record.__dict__, "environment": {"round_medians_us": changes["rounds"]}}
        )
    passed = changes.get("passed", True)
    return EntrantResult(f"trial-{trial_id}", role, trial_id, record, verdict(passed), None)


def twin(trial_id: int, time_us: float) -> EntrantResult:
    return EntrantResult("twin", EntrantRole.TWIN, trial_id, measurement(time_us), verdict(), None)


def baseline(time_us: float | None, *, contended: bool = False) -> EntrantResult:
    if time_us is None:
        return EntrantResult("baseline", EntrantRole.BASELINE, None, None, None, failed(TrialReason.CRASH))
    record = measurement(time_us, contended=contended)
    return EntrantResult("baseline", EntrantRole.BASELINE, None, record, verdict(), None)


def crashed(trial_id: int) -> EntrantResult:
    failure = failed(TrialReason.CRASH)
    return EntrantResult(f"trial-{trial_id}", EntrantRole.FINALIST, trial_id, None, None, failure)


def facts(*ids: int, workspace: dict[int, int] | None = None, toolchain: str = "new") -> dict[int, Facts]:
    spaces = workspace or {}
    return {i: Facts(i, f"s{i}", f"a{i}", toolchain, spaces.get(i, 0)) for i in ids}


def served(trial_id: int, toolchain: str = "new") -> Served:
    return Served(Winner.TRIAL, trial_id, f"s{trial_id}", f"a{trial_id}", toolchain)


VENDOR = Served(Winner.BASELINE, None, None, None, None)


def result(*entrants: EntrantResult, now: Served | None = None, **changes: Any) -> Decision:
    ids = [e.trial_id for e in entrants if e.trial_id is not None]
    return decide(entrants, changes.get("known") or facts(*ids), now, changes.get("noise", NOISE))


def test_the_fastest_is_published_with_the_race_times() -> None:
    got = result(runner(1, 100.0), runner(2, 120.0), twin(1, 101.0), baseline(200.0))
    assert (got.verb, got.winner, got.trial_id) == (Verb.PUBLISH, Winner.TRIAL, 1)
    assert (got.time_us, got.baseline_us) == (100.0, 200.0)
    assert [one["trial_id"] for one in got.tie_set] == [1]
    assert got.noise["band"] == 0.02


def test_all_within_the_noise_tie_and_the_smaller_workspace_wins_whatever_the_order() -> None:
    known = facts(1, 2, 3, workspace={1: 4096, 2: 0, 3: 0})
    entrants = [runner(1, 100.0), runner(2, 101.5), runner(3, 101.0), runner(4, 103.0), baseline(200.0)]
    known |= facts(4)
    picks = set()
    for order in (entrants, entrants[::-1]):
        got = result(*order, known=known)
        picks.add(got.trial_id)
        assert {one["trial_id"] for one in got.tie_set} == {1, 2, 3}
    assert picks == {2}  # no workspace, and s2 comes before s3


def test_the_gain_that_is_told_is_that_of_the_one_served() -> None:
    known = facts(1, 2, workspace={1: 4096, 2: 0})
    got = result(runner(1, 100.0), runner(2, 101.5), baseline(203.0), known=known)
    assert (got.trial_id, got.time_us) == (2, 101.5)
    assert got.reason.startswith("2.00 times as fast")


def test_what_is_served_stays_within_the_noise() -> None:
    got = result(runner(1, 100.0), runner(2, 101.0, EntrantRole.INCUMBENT), baseline(200.0), now=served(2))
    assert (got.verb, got.trial_id, got.time_us) == (Verb.KEEP, 2, 101.0)


def test_what_is_served_goes_when_it_is_beaten() -> None:
    got = result(runner(1, 100.0), runner(2, 103.0, EntrantRole.INCUMBENT), baseline(200.0), now=served(2))
    assert (got.verb, got.trial_id) == (Verb.PUBLISH, 1)


def test_what_is_served_goes_when_it_fails() -> None:
    got = result(crashed(2), runner(1, 150.0), baseline(200.0), now=served(2))
    assert (got.verb, got.trial_id) == (Verb.PUBLISH, 1)
    assert got.failures == ("trial-2 (trial 2) failed its re-check: crash",)


def test_a_tie_heals_a_stale_toolchain() -> None:
    known = facts(1) | facts(2, toolchain="old")
    old = served(2, "old")
    entrants = [runner(1, 100.0), runner(2, 100.5, EntrantRole.INCUMBENT), baseline(200.0)]
    got = result(*entrants, now=old, known=known)
    assert (got.verb, got.trial_id) == (Verb.PUBLISH, 1)


def test_the_vendor_takes_the_place_of_what_is_served_only_beyond_the_noise() -> None:
    incumbent = runner(1, 100.0, EntrantRole.INCUMBENT)
    assert result(incumbent, baseline(99.0), now=served(1)).winner is Winner.TRIAL
    got = result(incumbent, baseline(90.0), now=served(1))
    assert (got.verb, got.winner, got.trial_id, got.time_us) == (Verb.PUBLISH, Winner.BASELINE, None, 90.0)


def test_a_first_release_is_ours_only_where_it_is_not_slower() -> None:
    """With a band of 45 %, as on a busy machine, 3 % slower than the vendor's is within the noise."""
    noisy = {"relative": 0.45}
    got = result(runner(1, 103.0), baseline(100.0), noise=noisy)
    assert (got.verb, got.winner, got.time_us) == (Verb.PUBLISH, Winner.BASELINE, 100.0)
    assert result(runner(1, 100.0), baseline(100.0), noise=noisy).winner is Winner.TRIAL
    # And it does not flip: what is served then stays until it is beaten beyond the noise.
    assert result(runner(1, 90.0), baseline(100.0), noise=noisy, now=VENDOR).verb is Verb.KEEP


def test_where_the_vendor_is_served_it_stays_until_beaten_beyond_the_noise() -> None:
    assert result(runner(1, 99.0), baseline(100.0), now=VENDOR).verb is Verb.KEEP
    assert result(runner(1, 100.0), baseline(90.0), now=VENDOR).verb is Verb.KEEP
    assert result(runner(1, 95.0), baseline(100.0), now=VENDOR).winner is Winner.TRIAL


def test_a_tie_that_the_vendor_beats_is_not_chosen() -> None:
    """The best ties with the vendor; the one with less workspace ties with the best only."""
    known = facts(1, 2, 3, workspace={1: 100, 2: 0})
    entrants = [runner(1, 100.0), runner(2, 101.9), runner(3, 140.0, EntrantRole.INCUMBENT), baseline(99.0)]
    got = result(*entrants, known=known, now=served(3))
    assert got.trial_id == 1


def test_a_disturbed_best_or_vendor_is_raced_again() -> None:
    assert result(runner(1, 100.0, contended=True), runner(2, 120.0), baseline(200.0)).verb is Verb.AGAIN
    assert result(runner(1, 100.0), baseline(200.0, contended=True)).verb is Verb.AGAIN
    got = result(runner(1, 100.0), runner(2, 101.0, contended=True), baseline(200.0))
    assert (got.verb, [one["trial_id"] for one in got.tie_set]) == (Verb.PUBLISH, [1])


def test_a_failed_finalist_is_named_and_the_next_takes_its_place() -> None:
    got = result(crashed(1), runner(2, 100.0), runner(3, 90.0, passed=False), baseline(200.0))
    assert (got.verb, got.trial_id) == (Verb.PUBLISH, 2)
    assert len(got.failures) == 2
    assert "wrong result" in got.failures[1]


def test_nobody_passed() -> None:
    got = result(crashed(1), baseline(200.0))
    assert (got.verb, got.winner) == (Verb.NEXT, None)


def test_without_a_vendor_the_best_is_published_all_the_same() -> None:
    got = result(runner(1, 100.0), baseline(None))
    assert (got.verb, got.baseline_us) == (Verb.PUBLISH, None)
    assert got.reason.endswith(UNRACED)
    incumbent = runner(2, 150.0, EntrantRole.INCUMBENT)
    beaten = result(runner(1, 100.0), incumbent, baseline(None), now=served(2))
    assert (beaten.verb, beaten.trial_id) == (Verb.PUBLISH, 1)
    assert beaten.reason.endswith(UNRACED)
    assert UNRACED not in result(runner(1, 100.0), incumbent, baseline(200.0), now=served(2)).reason


def test_a_vendor_that_is_served_and_could_not_be_raced_stays() -> None:
    got = result(runner(1, 100.0), baseline(None), now=VENDOR)
    assert (got.verb, got.winner, got.trial_id) == (Verb.KEEP, Winner.BASELINE, None)
    assert "could not be raced" in got.reason


@pytest.mark.parametrize("nonsense", [0.0, -1.0, float("nan"), float("inf")])
def test_no_time_that_cannot_be_one_wins_or_divides(nonsense: float) -> None:
    got = result(runner(1, nonsense), runner(2, 100.0), baseline(nonsense))
    assert (got.verb, got.trial_id, got.baseline_us) == (Verb.PUBLISH, 2, None)


def test_drift_cancels_round_by_round() -> None:
    """Everything got slower during the race, the second entrant is 5 % faster in every round."""
    slow = [100.0 * (1 + 0.1 * i) for i in range(8)]
    one = runner(1, 130.0, rounds=slow)
    two = runner(2, 131.0, rounds=[0.95 * t for t in slow])
    assert result(one, two, baseline(400.0)).trial_id == 2


def test_the_noise_without_a_word_from_the_worker_is_the_twins() -> None:
    got = result(runner(1, 100.0), twin(1, 108.0), runner(2, 107.0), baseline(200.0), noise={})
    assert got.noise["band"] == pytest.approx(0.077, abs=0.001)
    assert len(got.tie_set) == 2
    quiet = result(runner(1, 100.0), twin(1, 100.0), runner(2, 100.4), baseline(200.0), noise={})
    assert quiet.noise["band"] == 0.005
    assert len(quiet.tie_set) == 2


def test_one_sample_has_no_spread_and_that_is_no_nan() -> None:
    got = result(runner(1, 100.0), baseline(200.0), noise={})
    assert got.noise["median_error"] is None
    assert got.noise["twin"] is None
