"""What do all searches of one family for one problem on one device share, whatever their seeds?

Which points were judged, the good starts, and the cost model's ranking, which takes a tenth of a second: many
jobs for one problem pay for it once. It follows from the question alone; a new process makes it again.
"""

from __future__ import annotations

import json
import random

from search_space.family import Family
from search_space.schedule import Schedule
from service.jobs.proposing import Ask
from service.search.ground import Ground
from service.search.start import by_model, known_starts
from service.search.tpe import seed_of


class Land:
    """One family, for one problem, on one device, within one job's limits."""

    def __init__(self, family: Family, ask: Ask, scored: int) -> None:
        """`scored`: how many random schedules the cost model judges."""
        self.ground = Ground(family, ask.problem, ask.device, ask.limits)
        self._seed = seed_of("land", ask.problem.key, family.name)
        self._scored = scored
        self.known = known_starts(self.ground, random.Random(self._seed))
        """Good starts, the default first; empty where the limits leave nothing."""
        self._model: list[Schedule] | None = None

    def ranked(self) -> list[Schedule]:
        """What the cost model judged, fastest first; made when it is first needed."""
        if self._model is None:
            self._model = by_model(self.ground, random.Random(self._seed), self._scored)
        return self._model


def land_key(family: str, ask: Ask) -> str:
    """The same for questions that share a land."""
    limits = sorted((name, list(values)) for name, values in ask.limits.items())
    return json.dumps([family, ask.problem.key, ask.device.to_json(), limits], sort_keys=True, default=str)
