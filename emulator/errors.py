"""What can go wrong in the emulator that is no fault of the kernel it runs?

EmulatorError      the emulator cannot do what was asked; str() is the whole sentence a person reads
└── PtxError       the text is not PTX that the emulator knows; `line` says where
"""

from __future__ import annotations

__all__ = ["EmulatorError", "PtxError"]


class EmulatorError(Exception):
    """The emulator cannot do what was asked."""


class PtxError(EmulatorError):
    """PTX that is malformed or unknown. `line` counts from 1 (0: no one line); `message` leaves it out."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"PTX line {line}: {message}" if line else f"PTX: {message}")
        self.message = message
        self.line = line
