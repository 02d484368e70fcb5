"""Why is something not legal? A rule never says just no: it names itself and shows its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

Number: TypeAlias = int | float | str


@dataclass(frozen=True)
class Violation:
    """One broken rule. `message` is a sentence for people, `numbers` what the rule compared."""

    rule: str
    message: str
    numbers: Mapping[str, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", MappingProxyType(dict(self.numbers)))

    def __hash__(self) -> int:
        return hash((self.rule, self.message, tuple(sorted((k, str(v)) for k, v in self.numbers.items()))))

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this violation."""
        return {"rule": self.rule, "message": self.message, "numbers": dict(self.numbers)}

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {value}" for name, value in self.numbers.items())
        return f"{self.rule}: {self.message}" + (f" ({shown})" if shown else "")
