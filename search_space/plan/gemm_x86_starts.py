"""Where does tuning of a gemm_x86 problem begin: the default schedule and a handful of other good starts?

By class of shape, from measurements of each class, never by literal sizes. The default is what a lookup
serves where
nothing was tuned, so it has to be decent everywhere.
"""

from __future__ import annotations

from typing import Any

from rooftile.problem import Problem

from search_space.device import Device
from search_space.plan.gemm_x86_shape import Shape
from search_space.plan.gemm_x86_space import NAME, check, lanes, parameters, stream_possible
from search_space.schedule import Schedule


def default(problem: Problem, device: Device) -> Schedule:
    """The first legal start."""
    return candidates(problem, device)[0]


def candidates(problem: Problem, device: Device) -> list[Schedule]:
    """Good starts, best first, without repetition."""
    shape, space = Shape.of(problem), parameters(problem, device)
    choices = {p.name: p.choices for p in space}
    found: list[Schedule] = []
    for values in [*_proposals(shape, device), *_plain(shape, device)]:
        fitted = {name: _nearest(value, choices[name]) for name, value in values.items()}
        schedule = Schedule.of(NAME, space, fitted)
        if schedule not in found and not check(problem, device, schedule):
            found.append(schedule)
    return found


def _nearest(value: Any, choices: tuple[Any, ...]) -> Any:
    """The value where it is a choice; a block size that is not one here (it covers the whole) is 0."""
    if value in choices and any(type(c) is type(value) and c == value for c in choices):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 if 0 in choices else max((c for c in choices if c <= value), default=choices[0])
    return choices[0]


def _blocked(device: Device, **changes: Any) -> dict[str, Any]:
    wide = lanes(device) == 16
    values: dict[str, Any] = {
        "path": "blocked",
        "mr": 12 if wide else 6,
        "nr": 32 if wide else 16,
        "mc": 96,
        "nc": 0,
        "kc": 256,
        "pack_a": "block",
        "pack_b": True,
        "prefetch": "none",
        "ahead": 0,
        "pad": 0,
        "threads": device.cores,
        "split_batch": 1,
        "split_n": 1,
        "split_k": 1,
        "share": True,
        "hand_out": "no",
        "hold": "b",
        "outer": "n",
        "inner": "rows",
        "unroll": 4,
    }
    return values | changes


def _stream(shape: Shape, device: Device, **changes: Any) -> dict[str, Any]:
    values = _blocked(device) | {
        "path": "stream",
        "mr": min(shape.m, 4),
        "nr": 2 * lanes(device),
        "mc": 0,
        "nc": 0,
        "kc": 0,
        "pack_a": "whole",
        "pack_b": False,
        "split_n": device.cores,
        "hold": "c",
        "unroll": 8,
    }
    if shape.b_nk:
        values |= {"mr": min(shape.m, 3), "nr": 4, "unroll": 4, "pack_a": "no"}
    return values | changes


def _proposals(shape: Shape, device: Device) -> list[dict[str, Any]]:
    cores = device.cores
    found: list[dict[str, Any]] = []
    if stream_possible(shape) and shape.m <= 24:
        found.append(_stream(shape, device))
        if not shape.b_nk:
            hold_b = {"hold": "b", "mr": 1, "unroll": 4}
            found += [
                _stream(shape, device, ahead=4),
                _stream(shape, device, mr=min(shape.m, 6)),
                _stream(shape, device, **hold_b),
                _stream(shape, device, split_n=1, split_k=cores),
            ]
        else:
            found += [_stream(shape, device, kc=1024), _stream(shape, device, ahead=8)]
    skinny = shape.n <= 4 * lanes(device) * 4 and shape.m > shape.n
    if skinny:
        found += [_blocked(device, pack_a="no", inner="columns", mc=0)]
    if shape.m * shape.n * shape.k <= 600**3:
        found += [_blocked(device, mc=0), _blocked(device, mc=0, pack_a="no")]
    found += [
        _blocked(device),
        _blocked(device, kc=384),
        _blocked(device, mc=48, kc=512),
        _blocked(device, split_n=cores),
        _blocked(device, hold="b", mr=4, nr=3 * lanes(device)),
    ]
    return found


def _plain(shape: Shape, device: Device) -> list[dict[str, Any]]:
    """Legal whatever the shape: one of these ends the list, so that there always is a default."""
    return [
        _blocked(device, mc=0, kc=0, split_n=1),
        _blocked(device, mc=0, kc=0, mr=1, nr=lanes(device), threads=1),
    ]
