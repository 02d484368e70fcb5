"""What does each page show? Rows of the store, put into the words and units that a person reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from rooftile.problem import OPS, Problem, parse_problem
from sqlalchemy.orm import Session

from service.api import pages, render
from service.store import devices, releases
from service.store.enums import Winner
from service.store.records import DeviceRecord, ReleaseFilter, ReleaseRecord
from service.web import roof, units

ROWS = 50
# How many releases a text filter looks through for one page.
_MOST_SCANNED = 3000
DTYPES = ("f64", "f32", "tf32", "f16", "bf16", "e4m3", "e5m2", "e2m1", "s8", "u8")


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of the page of best configurations, as they stand in its address."""

    text: str | None = None
    op: str | None = None
    dtype: str | None = None
    device: str | None = None

    @property
    def any(self) -> bool:
        return any((self.text, self.op, self.dtype, self.device))

    def query(self, **more: str) -> str:
        given = {"text": self.text, "op": self.op, "dtype": self.dtype, "device": self.device, **more}
        kept = {name: value for name, value in given.items() if value}
        return "/?" + urlencode(kept) if kept else "/"


@dataclass(frozen=True, slots=True)
class Pager:
    """Links to other pages of a list; None where there is none."""

    first: str | None
    next: str | None


@dataclass(frozen=True, slots=True)
class BestRow:
    """One served configuration."""

    title: str
    details: str
    """What follows op and sizes in the title: dtype, layouts, epilogue."""
    problem_key: str
    device_key: str
    device_name: str
    policy: str
    time_us: float
    noise: str
    rate: str
    other_rate: str
    roof: roof.RoofShare
    gain: float | None
    gain_class: str
    baseline_us: float | None
    schedule: str
    date: datetime
    toolchain: str
    toolchain_full: str
    baseline: str
    trial_id: int | None
    job_id: int
    pinned: bool
    unproven: bool
    """Published by an admin without the emulated verdict that its family needs."""


def best_page(
    s: Session, filters: Filters, token: str | None
) -> tuple[list[BestRow], Pager, list[DeviceRecord]]:
    """The rows of one page, where the other pages are, and the devices to choose from."""
    known = devices.listing(s)
    by_key = {device.key: device for device in known}
    page = pages.page("best", ROWS, token, (int,))
    where = ReleaseFilter(op=filters.op, dtype=filters.dtype, device_key=filters.device)
    after: Any = page.after
    rows: list[BestRow] = []
    scanned = 0
    while len(rows) < ROWS and scanned < _MOST_SCANNED:
        found = releases.listing(s, where, after=after, limit=ROWS - len(rows) if not filters.text else ROWS)
        for release in found.rows:
            scanned += 1
            if len(rows) < ROWS:
                row = best_row(release, by_key.get(release.device_key))
                after = (release.id,)
                if not filters.text or matches(row, filters.text):
                    rows.append(row)
        if found.next is None and (not found.rows or after == (found.rows[-1].id,)):
            after = None
            break
    more = None if after is None else filters.query(page_token=pages.encode_token("best", after))
    return rows, Pager(first=filters.query() if token else None, next=more), known


def matches(row: BestRow, text: str) -> bool:
    """Every word stands somewhere in the row."""
    device = f"{row.device_name} {row.device_key} {row.policy}"
    shown = f"{row.title} {row.details} {device} {row.schedule} {row.problem_key}".lower()
    return all(word in shown for word in text.lower().split())


def best_row(release: ReleaseRecord, device: DeviceRecord | None) -> BestRow:
    problem = parse_problem(release.problem)
    cache = str(release.policy.get("cache", "cold"))
    reached = roof.share(problem, release.time_us, None if device is None else device.roof, cache)
    rate, other = rates(problem, release.time_us, reached.kind)
    won = release.winner is Winner.TRIAL
    words = release.title.split()
    gain = release.baseline_time_us / release.time_us if release.baseline_time_us and won else None
    return BestRow(
        title=" ".join(words[:2]),
        details=" ".join(words[2:]),
        problem_key=release.problem_key,
        device_key=release.device_key,
        device_name=release.device_key if device is None else device.name,
        policy=policy_text(release.policy),
        time_us=release.time_us,
        noise=noise_text(release.noise),
        rate=rate,
        other_rate=other,
        roof=reached,
        gain=gain if won else 1.0,
        gain_class="good" if gain is not None and gain > 1 else "",
        baseline_us=release.baseline_time_us,
        schedule=render.schedule_text(release.schedule)
        if won
        else "the Baseline won: the client calls the vendor's kernel",
        date=release.published_at or release.created_at,
        toolchain=toolchain_text(release.toolchain) if won else baseline_text(release.baseline),
        baseline=baseline_text(release.baseline),
        toolchain_full=toolchain_full(release.toolchain),
        trial_id=release.trial_id,
        job_id=release.job_id,
        pinned=release.pinned,
        unproven=release.unproven,
    )


def rates(problem: Problem, time_us: float | None, kind: str) -> tuple[str, str]:
    """Arithmetic and bytes per second, the one that binds first."""
    flops, moved = units.flop_rate(problem.flops, time_us), units.byte_rate(problem.min_bytes, time_us)
    return (moved, flops) if kind == "memory" else (flops, moved)


def noise_text(noise: Mapping[str, Any]) -> str:
    """The noise band of a race as a share of the time."""
    band = noise.get("band")
    if isinstance(band, bool) or not isinstance(band, int | float):
        return "noise not known"
    return f"± {units.percent(abs(band), 2)}"


def policy_text(policy: Mapping[str, Any]) -> str:
    return ", ".join(str(policy[name]) for name in ("cache", "launch") if policy.get(name)) or units.NONE


def toolchain_text(toolchain: Mapping[str, Any] | None) -> str:
    """Compiler and version."""
    if not toolchain:
        return units.NONE
    return f"{toolchain.get('compiler', '?')} {toolchain.get('version', '')}".strip()


def toolchain_full(toolchain: Mapping[str, Any] | None) -> str:
    """Everything that names the toolchain, for a tooltip."""
    if not toolchain:
        return ""
    flags = " ".join(str(flag) for flag in toolchain.get("flags", ()))
    sources = units.short(str(toolchain.get("sources_sha256", "")), 12)
    return f"{toolchain_text(toolchain)} · {toolchain.get('target', '')} · {flags} · sources {sources}"


def baseline_text(baseline: Mapping[str, Any]) -> str:
    """What the Baseline was: the library, its version, and the kernels it chose for this CPU."""
    environment = baseline.get("environment")
    blas = environment.get("blas") if isinstance(environment, Mapping) else None
    if not blas or not isinstance(blas, list | tuple):
        return "Baseline"
    first = blas[0]
    words = (first.get(name) for name in ("internal_api", "version", "architecture"))
    return " ".join(str(word) for word in words if word)


def choices(known: Sequence[DeviceRecord]) -> dict[str, Any]:
    """What the filters offer."""
    return {"ops": list(OPS), "dtypes": list(DTYPES), "devices": list(known)}
