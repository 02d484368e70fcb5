"""What does a program that imports rooftile see? Names only: each loads its module on first use, so that
`import rooftile` costs milliseconds, uses the standard library alone, and touches no GPU and no network."""

from __future__ import annotations

# Type checkers take this name for true; importing it from typing would cost more than all the rest here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rooftile.client import Client, Job, Kernel
    from rooftile.errors import (
        ArtifactError,
        DeviceError,
        FieldError,
        LaunchError,
        PlanError,
        RooftileError,
        ServiceError,
        ServiceUnreachable,
    )
    from rooftile.plan import LaunchPlan
    from rooftile.problem import Attention, Gemm, Layer, Problem, parse_problem

__version__ = "0.1.0"

_HOME_OF = {
    "Client": "rooftile.client",
    "Job": "rooftile.client",
    "Kernel": "rooftile.client",
    "ArtifactError": "rooftile.errors",
    "DeviceError": "rooftile.errors",
    "FieldError": "rooftile.errors",
    "LaunchError": "rooftile.errors",
    "PlanError": "rooftile.errors",
    "RooftileError": "rooftile.errors",
    "ServiceError": "rooftile.errors",
    "ServiceUnreachable": "rooftile.errors",
    "LaunchPlan": "rooftile.plan",
    "Attention": "rooftile.problem",
    "Gemm": "rooftile.problem",
    "Layer": "rooftile.problem",
    "Problem": "rooftile.problem",
    "parse_problem": "rooftile.problem",
}

__all__ = [
    "ArtifactError",
    "Attention",
    "Client",
    "DeviceError",
    "FieldError",
    "Gemm",
    "Job",
    "Kernel",
    "LaunchError",
    "LaunchPlan",
    "Layer",
    "PlanError",
    "Problem",
    "RooftileError",
    "ServiceError",
    "ServiceUnreachable",
    "__version__",
    "parse_problem",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'rooftile' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
