"""How are the outcomes of many trials said in one sentence?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from service.store.enums import TrialReason, TrialState
from service.store.records import OutcomeCount


def failures_in_words(counts: Sequence[OutcomeCount]) -> str:
    """`12 tried: 8 compile_error, 4 crash`."""
    found = failures(counts)
    total = sum(one.count for one in counts)
    listed = ", ".join(f"{count} {name}" for name, count in found.items())
    return f"{total} tried" + (f": {listed}" if listed else "")


def failures(counts: Sequence[OutcomeCount]) -> dict[str, int]:
    """Trials without a time by reason, most frequent first."""
    found: Counter[str] = Counter()
    for one in counts:
        if one.state not in (TrialState.MEASURED, TrialState.RANKED):
            found[str(one.reason or one.state)] += one.count
    return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


def only_compiler_missing(counts: Sequence[OutcomeCount]) -> bool:
    """Nothing was compiled, for want of a compiler."""
    reasons = {one.reason for one in counts if one.state is not TrialState.CANCELLED}
    return reasons == {TrialReason.COMPILER_MISSING}
