"""How is a device's portfolio shown: which few schedules are good for many problems, and what they lose?"""

from __future__ import annotations

from rooftile.device import parse_device_key
from rooftile.errors import FieldError
from rooftile.problem import nearest_name
from sqlalchemy.orm import Session

from search_space.registry import families
from service.api import render, schemas
from service.jobs import portfolio
from service.jobs.portfolio import Portfolio
from service.jobs.target import AUTO, auto_device, device_arch, policy_key, resolve_policy
from service.store import measured_times


def shown(
    s: Session, device: str, family: str | None, cache: str | None, launch: str | None, loss_percent: float
) -> schemas.PortfolioList:
    """One portfolio for each family that was timed on the device."""
    key = auto_device(s, "device") if device == AUTO else str(parse_device_key(device))
    if key is None:
        raise FieldError("device", device, "the key of a device (none is known, so auto means none)")
    known = tuple(families())
    if family is not None and family not in known:
        raise FieldError("family", family, f"one of {', '.join(known)}", nearest_name(family, known))
    policy = resolve_policy(cache or None, launch or None, key)
    found = []
    for name in known if family is None else (family,):
        times = measured_times.of_family(s, key, name, policy_key(policy))
        if times:
            told = portfolio.cover(times, loss=loss_percent / 100)
            found.append(_one(s, name, device_arch(s, key, "device"), told, len(times)))
    return schemas.PortfolioList(device=key, policy=dict(policy), portfolios=found)


def _one(s: Session, family: str, arch: str, told: Portfolio, count: int) -> schemas.Portfolio:
    known = measured_times.schedules(s, arch, [one.schedule_key for one in told.members])
    return schemas.Portfolio(
        family=family,
        loss_percent=100 * told.loss,
        problem_count=count,
        covered=count - len(told.uncovered),
        mean_loss_percent=None if told.mean_loss is None else 100 * told.mean_loss,
        worst_loss_percent=None if told.worst_loss is None else 100 * told.worst_loss,
        fewest=told.exact,
        members=[
            schemas.PortfolioMember(
                schedule_key=one.schedule_key,
                schedule=known.get(one.schedule_key),
                schedule_text=render.schedule_text(known.get(one.schedule_key)),
                problems=list(one.problems),
            )
            for one in told.members
        ],
        uncovered=list(told.uncovered),
    )
