"""Where each machine loads the state from after a failure (GEMINI, "Recovery"): pure arithmetic on who holds what.

A failure is one of memory only if some state has no live holder: a group, or a ring, with a live machine can have lost
a state, and so the holders count and not the groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

Offers = Mapping[int, Mapping[int, Collection[int]]]
"""By holder and by the machine whose state it is: the versions that the holder has complete."""


@dataclass(frozen=True)
class RecoveryPlan:
    """What all machines load. `version` is None where that is the newest checkpoint on storage, since versions must
    agree.

    sources[i]: who has that version of the state of machine i, in the order in which to ask them: i itself where it has
    it, otherwise the one with the fewest to serve first.
    """

    version: int | None
    sources: tuple[tuple[int, ...], ...]


def recover(failed: Collection[int], holders: Sequence[Sequence[int]], offers: Offers) -> RecoveryPlan:
    """The newest version of which a live machine offers each state, and whom each machine takes it from.

    failed: machines whose memory is lost; offers of theirs are ignored. holders: those of each machine's state.
    """
    live = [[holder for holder in held if holder not in failed] for held in holders]
    common = _common(live, offers)
    if not common:
        return RecoveryPlan(None, tuple(() for _ in holders))
    version, serving = max(common), Counter[int]()
    sources = []
    for machine, held in enumerate(live):
        having = [holder for holder in held if version in _versions(offers, holder, machine)]
        having.sort(key=lambda holder: (holder != machine, serving[holder], holder))
        if having[0] != machine:
            serving[having[0]] += 1
        sources.append(tuple(having))
    return RecoveryPlan(version, tuple(sources))


def complete_everywhere(holders: Sequence[Sequence[int]], newest: Mapping[int, int]) -> Offers:
    """The offers of machines that have all that they hold at their newest version, and at the one before it, which the
    other half of their memory keeps until the next one is complete. newest: by live machine, 0 for none."""
    hosted: dict[int, list[int]] = {machine: [] for machine in newest}
    for machine, held in enumerate(holders):
        for holder in held:
            if holder in hosted:
                hosted[holder].append(machine)
    offers: dict[int, dict[int, Collection[int]]] = {}
    for holder, machines in hosted.items():
        versions = [version for version in (newest[holder], newest[holder] - 1) if version > 0]
        offers[holder] = dict.fromkeys(machines, versions)
    return offers


def _versions(offers: Offers, holder: int, machine: int) -> Collection[int]:
    return offers.get(holder, {}).get(machine, ())


def _common(live: Sequence[Sequence[int]], offers: Offers) -> set[int]:
    """The versions of which each state has a live holder."""
    common: set[int] | None = None
    for machine, held in enumerate(live):
        offered = {version for holder in held for version in _versions(offers, holder, machine)}
        common = offered if common is None else common & offered
        if not common:
            return set()
    return common or set()
