"""Which moves from state to state are legal, for everything that has states?

The tables below are the rule: `transition` in `service.store.moves` refuses what they do not have,
and the docs are rendered from them. A state that maps to nothing is final.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from .enums import EmulationState as E
from .enums import JobProblemState as P
from .enums import JobState as J
from .enums import RaceState as C
from .enums import ReleaseState as R
from .enums import TrialState as T
from .enums import Word

Table: TypeAlias = Mapping[Word, tuple[Word, ...]]

TRIAL: Table = {
    T.PROPOSED: (T.COMPILED, T.RANKED, T.REJECTED, T.FAILED, T.CANCELLED),
    T.COMPILED: (T.MEASURING, T.RANKED, T.REJECTED, T.FAILED, T.CANCELLED),
    # back to compiled: its worker gave it back or was lost
    T.MEASURING: (T.MEASURED, T.CULLED, T.COMPILED, T.REJECTED, T.FAILED, T.CANCELLED),
    # one that computes wrongly in the race, or in the emulator, loses its time
    T.MEASURED: (T.FAILED,),
    # a finalist that the emulator finds wrong
    T.RANKED: (T.FAILED,),
    T.REJECTED: (),
    T.FAILED: (),
    T.CULLED: (),
    T.CANCELLED: (),
}

JOB: Table = {
    # straight to done: a size of 0 leaves nothing to tune
    J.QUEUED: (J.WAITING, J.RUNNING, J.PAUSED, J.DONE, J.FAILED, J.CANCELLED),
    J.WAITING: (J.QUEUED, J.RUNNING, J.PAUSED, J.FAILED, J.CANCELLED),
    J.RUNNING: (J.WAITING, J.PAUSED, J.FINISHING, J.FAILED, J.CANCELLED),
    J.PAUSED: (J.QUEUED, J.WAITING, J.RUNNING, J.FAILED, J.CANCELLED),
    J.FINISHING: (J.DONE, J.FAILED, J.CANCELLED),
    J.DONE: (),
    J.FAILED: (),
    J.CANCELLED: (),
}

JOB_PROBLEM: Table = {
    P.QUEUED: (P.SEARCHING, P.DONE, P.FAILED, P.CANCELLED),
    P.SEARCHING: (P.RESTING, P.RACING, P.PROVING, P.DONE, P.FAILED, P.CANCELLED),
    P.RESTING: (P.SEARCHING, P.FAILED, P.CANCELLED),
    P.RACING: (P.DONE, P.FAILED, P.CANCELLED),
    P.PROVING: (P.DONE, P.FAILED, P.CANCELLED),
    P.DONE: (),
    P.FAILED: (),
    P.CANCELLED: (),
}

RACE: Table = {
    C.QUEUED: (C.RACING, C.FAILED, C.CANCELLED),
    # back to queued: its worker gave it back or was lost
    C.RACING: (C.QUEUED, C.DONE, C.FAILED, C.CANCELLED),
    C.DONE: (),
    C.FAILED: (),
    C.CANCELLED: (),
}

EMULATION: Table = {
    E.QUEUED: (E.RUNNING, E.UNDECIDED),
    # back to queued: its worker gave it back or was lost, or nobody wants it now
    E.RUNNING: (E.QUEUED, E.PASSED, E.FAILED, E.UNDECIDED),
    E.PASSED: (),
    E.FAILED: (),
    # tried again with another schedule of the structure
    E.UNDECIDED: (E.QUEUED,),
}

RELEASE: Table = {
    R.CANDIDATE: (R.PUBLISHED, R.SUPERSEDED, R.WITHDRAWN),
    R.PUBLISHED: (R.SUPERSEDED, R.WITHDRAWN),
    # published again: a rollback
    R.SUPERSEDED: (R.PUBLISHED, R.WITHDRAWN),
    R.WITHDRAWN: (),
}

TABLES: Mapping[str, Table] = {
    "trial": TRIAL,
    "job": JOB,
    "job_problem": JOB_PROBLEM,
    "race": RACE,
    "emulation": EMULATION,
    "release": RELEASE,
}

INITIAL: Mapping[str, Word] = {
    "trial": T.PROPOSED,
    "job": J.QUEUED,
    "job_problem": P.QUEUED,
    "race": C.QUEUED,
    "emulation": E.QUEUED,
    "release": R.CANDIDATE,
}


def allowed(table: Table, source: Word) -> tuple[Word, ...]:
    """The states that may follow `source`."""
    return table[source]


def final(table: Table) -> frozenset[Word]:
    """The states that nothing follows."""
    return frozenset(state for state, after in table.items() if not after)


TRIAL_OPEN = (T.PROPOSED, T.COMPILED, T.MEASURING)
JOB_OPEN = (J.QUEUED, J.WAITING, J.RUNNING, J.PAUSED, J.FINISHING)
RACE_OPEN = (C.QUEUED, C.RACING)
EMULATION_OPEN = (E.QUEUED, E.RUNNING)
