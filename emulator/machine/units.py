"""What does a wave ask of its asynchronous units?

A unit works beside the warps: mbarriers, bulk copies and TMA, tensor cores of warpgroups, cluster barriers,
the pool of registers. Instructions call its own methods; the wave calls these. Work that has been issued may
end at any moment between its issue and what waits for it, and the run's order says when: `lands_at_once` asks
it. A further unit (tcgen05 with its tensor memory) is one more class with these methods in the wave's tuple.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from emulator.machine.wave import Wave


class Unit(Protocol):
    """One asynchronous unit of all CTAs of a wave."""

    def tick(self) -> None:
        """Random order only, before each turn: some work may end now."""

    def force(self) -> bool:
        """No thread can run: end the work that parked threads wait for, or wake those whose time has come.
        Whether anything changed."""

    def give_up(self) -> bool:
        """Nothing could be forced: let threads go on whose instruction may also say "not yet", unless they
        were let go already and nothing has happened since. Whether any goes on."""

    def exited(self, site: int) -> None:
        """The active lanes of the group are about to end."""

    def ended(self, cta: int, site: int) -> None:
        """All threads of a CTA have ended."""

    def finish(self) -> None:
        """All threads of the wave have ended."""

    def describe(self) -> list[str]:
        """Who waits for what, in sentences: for a deadlock's report."""


class Idle:
    """What a unit does where it has nothing to do."""

    def tick(self) -> None:
        """See Unit."""

    def force(self) -> bool:
        """See Unit."""
        return False

    def give_up(self) -> bool:
        """See Unit."""
        return False

    def exited(self, site: int) -> None:
        """See Unit."""

    def ended(self, cta: int, site: int) -> None:
        """See Unit."""

    def finish(self) -> None:
        """See Unit."""

    def describe(self) -> list[str]:
        """See Unit."""
        return []


def lands_at_once(w: Wave, copy: bool) -> bool:
    """Whether work issued now ends now. `copy`: into shared memory."""
    kind = w.order.kind
    if kind == "random":
        return bool(w.rng.random() < 0.4)
    return kind == "early" or (kind == "mixed" and copy)


__all__ = ["Idle", "Unit", "lands_at_once"]
