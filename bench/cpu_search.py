"""How near to the best known schedule does the product come on a CPU, in how few trials?

    python -m bench.cpu_search [--quick] [--json FILE] [--only reference|judge] [--reference FILE]
        [--parts DIR]

For each of 12 f32 problems with the weights of published models the product searches three times, measuring
for real: 1,200 trials, once for a device (`--only reference`; kept in bench/data/cpu_reference.json); 60
trials in a home that knows nothing; 15 trials in a home where the same weights were solved at other m, 60
trials each. The three answers are built anew and raced in turns in one session, cold. Figures: how much
slower than the best known schedule the answer of 60 trials is, and that of 15 with transfer, in percent: the
median over the problems and the worst; a loss below 0 is a better schedule than the one that was known.
`default_loss_percent` is that of the family's default, `noise_percent` the median difference of a race
between the same bytes. Each answer is kept under --parts: the same command again goes on where it was.
Exit 0 when it measured, 1 when it could not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftile.device import local_cpu

from bench.common import BenchError, bench_lock, environment, say, write
from bench.cpu_searching.judging import RACE_S, REFERENCE, losses
from bench.cpu_searching.problems import GROUPS, QUICK, Group, Named, judged, neighbours
from bench.cpu_searching.records import Parts, Reference
from bench.cpu_searching.tuned import search
from search_space.device import local_device
from search_space.registry import get_family
from search_space.schedule import Schedule
from service.store.backup import backup

DATA = Path(__file__).parent / "data" / "cpu_reference.json"
DEFAULT, ALONE, TRANSFER = "default", "alone", "transfer"


@dataclass(frozen=True)
class Size:
    """How much of it is done."""

    groups: tuple[Group, ...]
    reference: int
    alone: int
    transfer: int
    race_s: float

    @property
    def said(self) -> dict[str, Any]:
        return {
            "problems": len(judged(self.groups)),
            "trials_reference": self.reference,
            "trials_alone": self.alone,
            "trials_transfer": self.transfer,
            "race_s": self.race_s,
        }


FULL = Size(GROUPS, 1200, 60, 15, RACE_S)
SHORT = Size(QUICK, 20, 8, 4, 4.0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.cpu_search", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 problems, few trials: under 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only", choices=("reference", "judge"), help="one part of the full run")
    parser.add_argument("--reference", type=Path, default=DATA, metavar="FILE")
    parser.add_argument("--parts", type=Path, metavar="DIR", help="default: a folder for temporary files")
    args = parser.parse_args(argv)
    try:
        with bench_lock(), tempfile.TemporaryDirectory(prefix="rooftile-bench-") as folder:
            work = Path(folder)
            if args.quick:  # nothing of a short run is kept, and nothing recorded is used
                run = Run(SHORT, work, Reference(work / "reference.json"), Parts(work / "parts", None))
            else:
                kept = args.parts or Path(tempfile.gettempdir()) / "rooftile-cpu-search"
                run = Run(FULL, work, Reference(args.reference), Parts(kept, environment()["commit"]))
            figures, rows, env = run.all(args.only, quick=args.quick)
    except BenchError as error:
        print(f"bench.cpu_search: {error}", file=sys.stderr)
        return 1
    write(args.json, figures, rows, env)
    print(json.dumps({"figures": figures}, indent=1))
    return 0


class Run:
    """The searches and races of one run."""

    def __init__(self, size: Size, work: Path, reference: Reference, parts: Parts) -> None:
        self._size = size
        self._work = work
        self._reference = reference
        self._parts = parts
        self._device = str(local_cpu().key)
        self._known: Path | None = None
        self._homes = 0

    def all(
        self, only: str | None, *, quick: bool
    ) -> tuple[dict[str, float | None], list[dict[str, Any]], dict[str, Any]]:
        """Figures, a row a problem, and the machine. With `only` reference: which are recorded, no figure."""
        env = environment(policy="cold", quick=quick, **self._size.said)
        problems = judged(self._size.groups)
        if only != "judge":
            for named in problems:
                self._best_known(named)
        if only == "reference":
            return figures_of([]), [], env
        missing = [n.name for n in problems if self._recorded(n) is None]
        if missing:
            raise BenchError(
                f"no reference of this device for {', '.join(missing)}; record it first: --only reference"
            )
        rows = [self._row(named) for named in problems]
        env["toolchain"] = rows[0]["alone"]["toolchain"]
        return figures_of(rows), rows, env

    def _recorded(self, named: Named) -> dict[str, Any] | None:
        return self._reference.of(self._device, named.problem, self._size.reference)

    def _best_known(self, named: Named) -> dict[str, Any]:
        known = self._recorded(named)
        if known is None:
            found = search(named.problem, self._home(), self._size.reference)
            env = environment()
            about = {name: env[name] for name in ("cpu", "date", "commit")}
            known = self._reference.put(
                self._device, named.problem, {**about, **found.to_json(), "trials": self._size.reference}
            )
            say(f"{named.name}: best known {found.time_us:.1f} us of {found.trials} trials")
        return known

    def _row(self, named: Named) -> dict[str, Any]:
        done = self._parts.get(f"row {named.name}")
        if done is not None:
            return done
        known = self._recorded(named)
        assert known is not None
        alone = self._alone(named)
        transfer = self._transfer(named)
        problem, device = named.problem, local_device()
        schedules = {
            REFERENCE: Schedule.from_json(known["schedule"]),
            ALONE: Schedule.from_json(alone["schedule"]),
            TRANSFER: Schedule.from_json(transfer["schedule"]),
        }
        schedules[DEFAULT] = get_family(schedules[ALONE].family).default(problem, device)
        raced = losses(problem, schedules, self._home(), race_s=self._size.race_s)
        about = {name: known[name] for name in ("trials", "time_us", "date", "toolchain")}
        row = {"problem": named.name, **raced, "alone": alone, "transfer": transfer, "reference": about}
        row["schedules"] = {name: schedule.one_line() for name, schedule in schedules.items()}
        lost = raced["losses_percent"]
        say(
            f"{named.name}: loss {lost[ALONE]:+.1f} % after {alone['trials']} trials, "
            f"{lost[TRANSFER]:+.1f} % after {transfer['trials']} with transfer, "
            f"default {lost[DEFAULT]:+.1f} %, noise {raced['noise_percent']:.1f} %"
        )
        return self._parts.put(f"row {named.name}", row)

    def _alone(self, named: Named) -> dict[str, Any]:
        name = f"alone {named.name}"
        done = self._parts.get(name)
        return done or self._parts.put(name, search(named.problem, self._home(), self._size.alone).to_json())

    def _transfer(self, named: Named) -> dict[str, Any]:
        """In a home of its own with the solved neighbours, so that no judged problem learns from another."""
        name = f"transfer {named.name}"
        done = self._parts.get(name)
        if done is None:
            home = self._home()
            backup(f"sqlite:///{self._neighbours()}", home / "rooftile.db")
            done = self._parts.put(name, search(named.problem, home, self._size.transfer).to_json())
        return done

    def _neighbours(self) -> Path:
        """The database in which all neighbours are solved; kept with the parts, and goes on like them."""
        if self._known is None:
            home = self._parts.folder / "neighbours"
            for named in neighbours(self._size.groups):
                name = f"neighbour {named.name}"
                if self._parts.get(name) is None:
                    found = self._parts.put(name, search(named.problem, home, self._size.alone).to_json())
                    say(f"{named.name}: a neighbour, {found['time_us']:.1f} us of {found['trials']} trials")
            self._known = home / "rooftile.db"
        return self._known

    def _home(self) -> Path:
        self._homes += 1
        home = self._work / f"home{self._homes}"
        home.mkdir()
        return home


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Medians and worst ones over the problems; null without any."""
    lost = {name: [float(row["losses_percent"][name]) for row in rows] for name in (ALONE, TRANSFER, DEFAULT)}
    noise = [float(row["noise_percent"]) for row in rows]
    return {
        "loss60_percent": statistics.median(lost[ALONE]) if rows else None,
        "loss60_worst_percent": max(lost[ALONE], default=None),
        "loss15_transfer_percent": statistics.median(lost[TRANSFER]) if rows else None,
        "loss15_transfer_worst_percent": max(lost[TRANSFER], default=None),
        "default_loss_percent": statistics.median(lost[DEFAULT]) if rows else None,
        "noise_percent": statistics.median(noise) if rows else None,
    }


if __name__ == "__main__":
    sys.exit(main())
