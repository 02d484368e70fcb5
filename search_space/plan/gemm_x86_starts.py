"""Where does tuning of a gemm_x86 problem begin: the default schedule and a handful of other good starts?

By class of shape, from races in each class, never by literal sizes. The default is what a lookup serves where
nothing was tuned, so it has to be decent everywhere.
"""

from __future__ import annotations

from typing import Any

from rooftile.problem import Problem

from search_space.cpu_device import CpuDevice
from search_space.plan.gemm_x86_shape import Shape
from search_space.plan.gemm_x86_space import NAME, check, lanes, parameters, stream_possible
from search_space.schedule import Schedule

_STREAM_BEST = 48
"""Up to so many rows one pass over B costs more than the product."""
_SMALL = 320**3
_MEDIUM = 768**3
_FEW_CORES = 4
"""Up to so many threads may each pack the same A for itself rather than wait for one another."""


def default(problem: Problem, device: CpuDevice) -> Schedule:
    """The first legal start."""
    return candidates(problem, device)[0]


def candidates(problem: Problem, device: CpuDevice) -> list[Schedule]:
    """Good starts, best first, without repetition."""
    shape, space = Shape.of(problem), parameters(problem, device)
    choices = {p.name: p.choices for p in space}
    found: list[Schedule] = []
    for values in [*_proposals(shape, device), *_plain(device)]:
        fitted = {name: _nearest(value, choices[name]) for name, value in values.items()}
        schedule = Schedule.of(NAME, space, fitted)
        if schedule not in found and not check(problem, device, schedule):
            found.append(schedule)
    return found


def _nearest(value: Any, choices: tuple[Any, ...]) -> Any:
    """The value where it is a choice; a block size that is not one here (it covers the whole) is 0."""
    if any(type(c) is type(value) and c == value for c in choices):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 if 0 in choices else max((c for c in choices if c <= value), default=choices[0])
    return choices[0]


def _proposals(shape: Shape, device: CpuDevice) -> list[dict[str, Any]]:
    if stream_possible(shape) and shape.m <= _STREAM_BEST:
        return [*_streams(shape, device), *_wide(device)[:2], *_large(device)[:2]]
    if shape.m >= 8 * shape.n and shape.n <= 16 * lanes(device):
        return [*_tall(device), *_large(device)]
    work = shape.m * shape.n * shape.k
    if work <= _SMALL:
        return [*_small(device), *_large(device)]
    if shape.n >= 4 * shape.m:
        return [*_wide(device), *_large(device)]
    if work <= _MEDIUM:
        return [*_medium(device), *_large(device)]
    return _large(device)


def _blocked(device: CpuDevice, **changes: Any) -> dict[str, Any]:
    wide = lanes(device) == 16
    values: dict[str, Any] = {
        "path": "blocked",
        "mr": 14 if wide else 6,
        "nr": 32 if wide else 16,
        "mc": 96,
        "nc": 0,
        "kc": 512,
        "pack_a": "block",
        "pack_b": True,
        "prefetch": "none",
        "ahead": 0,
        "pad": 16,
        "threads": device.cores,
        "split_batch": 1,
        "split_n": 1,
        "split_k": 1,
        "hand_out": "no",
        "share": True,
        "hold": "b",
        "outer": "n",
        "inner": "rows",
        "unroll": 8,
    }
    return values | changes


def _flat(device: CpuDevice) -> dict[str, Any]:
    """A register tile with three vectors across: fewer loads for each multiply-add."""
    return {"mr": 8 if lanes(device) == 16 else 4, "nr": 3 * lanes(device)}


def _small(device: CpuDevice) -> list[dict[str, Any]]:
    whole = {"mc": 0, "kc": 0}
    apart = {"split_n": device.cores, "share": device.cores > _FEW_CORES}
    return [
        _blocked(device, **whole, **apart),
        _blocked(device, **whole),
        _blocked(device, **whole, pack_a="no", inner="columns", unroll=4),
        _blocked(device, **whole, hand_out="tiles"),
    ]


def _medium(device: CpuDevice) -> list[dict[str, Any]]:
    return [
        _blocked(device, mc=0, kc=0),
        _blocked(device, mc=0, kc=256, unroll=4),
        _blocked(device, mc=48, kc=0, hand_out="tiles"),
        _blocked(device, mc=24, kc=0, pack_a="no", inner="columns", unroll=2, hand_out="tiles"),
    ]


def _large(device: CpuDevice) -> list[dict[str, Any]]:
    return [
        _blocked(device, hand_out="tiles"),
        _blocked(device, **_flat(device), mc=48, split_n=device.cores),
        _blocked(device, mc=0, nc=768, kc=1024, pack_a="whole"),
        _blocked(device, **_flat(device), nc=256, pack_a="whole", split_n=device.cores, hand_out="columns"),
        _blocked(device, mc=48, kc=256, unroll=4),
    ]


def _wide(device: CpuDevice) -> list[dict[str, Any]]:
    """n much over m: each thread packs its own part of B, which is most of the data."""
    mine = {"split_n": device.cores, "inner": "columns", "unroll": 4}
    return [
        _blocked(device, **mine, mc=72, pack_a="whole"),
        _blocked(device, **mine, mc=48, kc=256),
        _blocked(device, **_flat(device), mc=0, kc=256, split_n=device.cores, prefetch="panel"),
        _blocked(device, mc=0, nc=512, kc=256, pack_a="whole", split_n=device.cores, hand_out="columns"),
    ]


def _tall(device: CpuDevice) -> list[dict[str, Any]]:
    """m much over a small n: B is packed once, rows of A are read in place from end to end."""
    in_place = {"pack_a": "no", "inner": "columns", "mc": 24}
    return [
        _blocked(device, **in_place, kc=0, unroll=2, hand_out="tiles"),
        _blocked(device, **in_place, kc=1024, unroll=4, hand_out="tiles"),
        _blocked(device, **in_place, kc=0, unroll=2),
        _blocked(device, mc=48),
    ]


def _stream(device: CpuDevice, **changes: Any) -> dict[str, Any]:
    return _blocked(
        device, path="stream", mc=0, kc=0, pad=0, pack_a="whole", pack_b=False, share=True
    ) | changes  # fmt: skip


def _streams(shape: Shape, device: CpuDevice) -> list[dict[str, Any]]:
    cores, width = device.cores, lanes(device)
    if shape.b_nk:
        rows, cols = (6, 4) if width == 16 else (3, 3)
        dots = {"mr": min(shape.m, rows), "nr": cols, "unroll": 4, "hold": "c", "pack_a": "no"}
        dots |= {"split_n": cores}
        return [
            _stream(device, **dots),
            _stream(device, **dots, hand_out="parts"),
            _stream(device, **dots | {"mr": min(shape.m, 2), "nr": 4}),
            _stream(device, **dots, kc=1024),
            _stream(device, **dots, ahead=8),
        ]
    parts_k = _parts_of_k(shape, device)
    wide = width == 16
    shares = {"split_k": parts_k, "split_n": cores // parts_k, "ahead": 4}
    # As much of B in registers as they hold beside sums and a value of A: deeper, or wider.
    deep = {"hold": "b", "mr": 1, "nr": 2 * width, "unroll": 12 if wide else 6}
    flat = {"hold": "b", "mr": 1, "nr": 3 * width, "unroll": 8 if wide else 4}
    sums = {"hold": "c", "mr": min(shape.m, 6 if wide else 4), "nr": 3 * width, "unroll": 6}
    handed = {"split_k": 16 if cores <= 8 else 1, "split_n": 1, "hand_out": "parts"}
    found = [_stream(device, **deep, **shares), _stream(device, **flat, **shares | {"ahead": 8})]
    few = _stream(device, **sums, **shares)
    return [
        *([few, *found] if shape.m <= (6 if wide else 4) else [*found, few]),
        _stream(device, **deep, **shares | handed),
        _stream(device, **flat, **shares | handed),
        _stream(device, **deep, **shares | {"ahead": 0}),
        _stream(device, **sums | {"nr": 2 * width, "unroll": 8}, split_n=cores),
    ]


def _parts_of_k(shape: Shape, device: CpuDevice) -> int:
    """Parts of k among the threads: as many as leave each thread rows of B enough to be worth a sum of its
    own, because whole rows stream best."""
    cores, parts = device.cores, 1
    while cores % (2 * parts) == 0 and shape.k >= 64 * parts and shape.k >= 16 * parts * shape.m:
        parts *= 2
    return parts


def _plain(device: CpuDevice) -> list[dict[str, Any]]:
    """Legal whatever the shape: one of these ends the list, so that there always is a default."""
    return [
        _blocked(device, mc=0, kc=0, nc=0),
        _blocked(device, mc=0, kc=0, nc=0, mr=1, nr=lanes(device), threads=1, unroll=4),
    ]
