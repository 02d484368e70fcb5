"""Is every kind of claimed work fenced alike: a reply counts only with the attempt that holds it, live leases
are left alone, and both losses and claims are bounded?

Compiles, measures, races and runs in the emulator each have their own queries; what holds for one must hold
for all, so each test is taken through all four.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session
from support.store import (
    ARCH,
    DEVICE,
    GPU_ARCH,
    POLICY,
    compile_all,
    compiled,
    emulated,
    failed,
    gpu_job,
    measure_all,
    measured,
    running_job,
)

from service.jobs.reaper import Reaper
from service.store import emulation_claims, jobs, races, trials
from service.store.claims import MAX_CLAIMS
from service.store.database import Database
from service.store.enums import EntrantRole, JobProblemState, TrialReason
from service.store.models import Emulation, Event, Race, Trial
from service.store.records import ClaimId, NewEntrant, Undecided

STRUCTURE = {"layout": "tn"}
LOSSES_MOST = 3


@dataclass(frozen=True)
class Work:
    """One kind of work: how it is put up, taken and answered."""

    model: Any
    put_up: Callable[[Session], object]
    claim: Callable[[Session, str, float], ClaimId | None]
    finish: Callable[[Session, ClaimId], bool]
    fail: Callable[[Session, ClaimId], bool]
    renew: Callable[[Session, ClaimId], bool]
    release: Callable[[Session, ClaimId], bool]
    expire: Callable[[Session], int]

    def row(self, s: Session) -> Any:
        return s.scalars(select(self.model).execution_options(populate_existing=True)).one()

    def facts(self, s: Session) -> tuple[Any, ...]:
        """All that a reply could change."""
        row = self.row(s)
        told = len(s.scalars(select(Event.id)).all())
        return row.state, row.reason, row.attempt, row.lease_owner, row.lease_expires_at, row.losses, told


def _race(s: Session) -> None:
    job_id, _ = running_job(s, 1)
    compile_all(s)
    (trial,) = measure_all(s, [5.0])
    (problem,) = jobs.problems(s, job_id)
    jobs.move_problem(s, problem.id, JobProblemState.RACING)
    races.create(s, problem.id, [NewEntrant("default", EntrantRole.DEFAULT, trial)], POLICY, seed=1)


def _raced(s: Session, claim: ClaimId) -> bool:
    """As a worker whose entrant crashed; a RaceOutcome needs more and is fenced by the same line."""
    return races.finish(s, claim, failed(TrialReason.CRASH))


def _first(claims: Any) -> ClaimId | None:
    return claims[0].claim_id if claims else None


def _one(claim: Any) -> ClaimId | None:
    return None if claim is None else claim.claim_id


WORK = {
    "compile": Work(
        Trial,
        lambda s: running_job(s, 1),
        lambda s, owner, lease_s: _first(trials.claim_compile(s, owner, 1, lease_s, [ARCH])),
        lambda s, claim: trials.finish_compile(s, claim, compiled()),
        lambda s, claim: trials.finish_compile(s, claim, failed(TrialReason.COMPILE_ERROR)),
        lambda s, claim: trials.renew(s, [claim], 60) == [claim],
        lambda s, claim: trials.release(s, [claim]) == 1,
        lambda s: len(trials.expire(s)),
    ),
    "measure": Work(
        Trial,
        lambda s: (running_job(s, 1), compile_all(s)),
        lambda s, owner, lease_s: _first(trials.claim_measure(s, owner, DEVICE, 1, lease_s)),
        lambda s, claim: trials.finish_measure(s, claim, measured(1.0)),
        lambda s, claim: trials.finish_measure(s, claim, failed(TrialReason.CRASH)),
        lambda s, claim: trials.renew(s, [claim], 60) == [claim],
        lambda s, claim: trials.release(s, [claim]) == 1,
        lambda s: len(trials.expire(s)),
    ),
    "race": Work(
        Race,
        _race,
        lambda s, owner, lease_s: _one(races.claim(s, owner, DEVICE, lease_s)),
        _raced,
        _raced,
        lambda s, claim: races.renew(s, claim, 60),
        races.release,
        lambda s: len(races.expire(s)),
    ),
    "emulate": Work(
        Emulation,
        lambda s: (gpu_job(s, 1), compile_all(s, structure=STRUCTURE)),
        lambda s, owner, lease_s: _one(emulation_claims.claim(s, owner, lease_s, [GPU_ARCH])),
        lambda s, claim: emulation_claims.finish(s, claim, emulated()),
        lambda s, claim: emulation_claims.finish(s, claim, Undecided(TrialReason.EMULATE_CRASH, {})),
        lambda s, claim: emulation_claims.renew(s, claim, 60),
        emulation_claims.release,
        lambda s: len(emulation_claims.expire(s)),
    ),
}


@pytest.fixture(params=WORK)
def work(request: pytest.FixtureRequest, database: Database) -> Work:
    """Of each kind in turn, with one piece of it waiting."""
    found = WORK[request.param]
    with database.begin() as s:
        found.put_up(s)
    return found


def replies(work: Work) -> list[Callable[[Session, ClaimId], bool]]:
    return [work.renew, work.release, work.fail, work.finish]


def test_a_reply_counts_only_with_the_attempt_that_holds_it(database: Database, work: Work) -> None:
    with database.begin() as s:
        late = work.claim(s, "slow", -1.0)
        assert late is not None
    with database.begin() as s:
        assert work.expire(s) == 1
    with database.begin() as s:
        before = work.facts(s)
        for reply in replies(work):  # nobody has it
            assert not reply(s, late)
        assert work.facts(s) == before
    with database.begin() as s:
        again = work.claim(s, "quick", 60.0)
        assert again == (late[0], late[1] + 1)
    with database.begin() as s:
        before = work.facts(s)
        for reply in replies(work):  # somebody else has it
            assert not reply(s, late)
    with database.begin() as s:
        assert work.facts(s) == before
        assert work.row(s).lease_owner == "quick"
        assert work.renew(s, again)
        assert work.finish(s, again)
    with database.begin() as s:
        before = work.facts(s)
        for claim in (late, again):  # it has ended
            for reply in replies(work):
                assert not reply(s, claim)
        assert work.facts(s) == before


def test_nobody_takes_what_is_held(database: Database, work: Work) -> None:
    with database.begin() as s:
        assert work.claim(s, "first", 60.0) is not None
    with database.begin() as s:
        before = work.facts(s)
        assert work.claim(s, "second", 60.0) is None
        assert work.facts(s) == before


def test_a_live_lease_is_left_alone_and_a_dead_one_is_given_back_by_the_reaper(
    database: Database, work: Work
) -> None:
    reaper = Reaper(database, "reaper", one_host=False)
    with database.begin() as s:
        claim = work.claim(s, "worker", 60.0)
        assert claim is not None
    with database.read() as s:
        before = work.facts(s)
    assert not reaper.reap(0.0)
    with database.begin() as s:
        assert work.facts(s) == before
        assert work.release(s, claim)
        assert work.claim(s, "worker", -1.0) is not None
    assert reaper.reap(10.0)
    with database.read() as s:
        row = work.row(s)
    assert (row.lease_owner, row.losses) == (None, 1)


def test_only_who_holds_the_reapers_lease_reaps(database: Database, work: Work) -> None:
    assert not Reaper(database, "one", one_host=False).reap(0.0)
    with database.begin() as s:
        assert work.claim(s, "worker", -1.0) is not None
    assert not Reaper(database, "two", one_host=False).reap(0.0)
    with database.read() as s:
        assert work.row(s).lease_owner == "worker"


def test_what_keeps_losing_its_worker_is_set_aside_with_the_reason(database: Database, work: Work) -> None:
    for losses in range(1, LOSSES_MOST + 1):
        with database.begin() as s:
            assert work.claim(s, "doomed", -1.0) is not None, losses
        with database.begin() as s:
            assert work.expire(s) == 1
            assert (work.row(s).reason == TrialReason.WORKER_LOST) == (losses == LOSSES_MOST)
    with database.begin() as s:
        assert work.claim(s, "another", 60.0) is None


@pytest.mark.parametrize("last", ["release", "expire"])
def test_what_is_given_back_again_and_again_is_set_aside_too(
    database: Database, work: Work, last: str
) -> None:
    with database.read() as s:
        claims_before = work.row(s).attempt  # a measure's trial was compiled
    for number in range(claims_before + 1, MAX_CLAIMS + 1):
        dies = last == "expire" and number == MAX_CLAIMS
        with database.begin() as s:
            claim = work.claim(s, "hesitant", -1.0 if dies else 60.0)
            assert claim is not None, number
            assert claim[1] == number
        with database.begin() as s:
            assert work.expire(s) == 1 if dies else work.release(s, claim)
            assert (work.row(s).reason == TrialReason.WORKER_LOST) == (number == MAX_CLAIMS)
    with database.begin() as s:
        assert work.claim(s, "another", 60.0) is None


def test_a_late_compile_asks_for_no_verdict(database: Database) -> None:
    with database.begin() as s:
        gpu_job(s, 1)
        (late,) = trials.claim_compile(s, "slow", 1, -1.0, [GPU_ARCH])
        assert len(trials.expire(s)) == 1
    with database.begin() as s:
        assert not trials.finish_compile(s, late.claim_id, compiled(structure=STRUCTURE))
    with database.read() as s:
        assert s.scalars(select(Emulation)).all() == []


def test_work_is_charged_to_whom_it_was_done_for(database: Database, work: Work) -> None:
    """Once, when it ends, and never by a late reply."""
    from service.store.models import Share

    def charged() -> float:
        with database.read() as s:
            return math.fsum(s.scalars(select(Share.served_s)))

    before = charged()
    with database.begin() as s:
        late = work.claim(s, "slow", -1.0)
        assert late is not None
    with database.begin() as s:
        assert work.expire(s) == 1
        claim = work.claim(s, "quick", 60.0)
        assert claim is not None
        assert not work.finish(s, late)
    assert charged() == before
    with database.begin() as s:
        assert work.finish(s, claim)
    after = charged()
    assert after > before
    with database.begin() as s:
        assert not work.finish(s, claim)
    assert charged() == after
