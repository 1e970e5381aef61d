"""Placements and what they survive, by trying everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

Sets = tuple[frozenset[int], ...]


def kept_by_trying(holders: Sequence[Sequence[int]], lost: int, domains: Sequence[int] = ()) -> int:
    """How many sets of `lost` machines, or of failure domains, leave a holder of every state."""
    where = domains or range(len(holders))
    spans = {frozenset(where[holder] for holder in held) for held in holders}
    return sum(not any(span <= set(chosen) for span in spans) for chosen in combinations(sorted(set(where)), lost))


def is_balanced(holders: Sequence[Sequence[int]], copies: int) -> bool:
    """Whether each machine holds its own state, and each round is a permutation of all machines."""
    everyone = list(range(len(holders)))
    own = all(held[0] == machine and len(set(held)) == copies for machine, held in enumerate(holders))
    return own and all(sorted(held[step] for held in holders) == everyone for step in range(copies))


def all_balanced(machines: int, copies: int) -> Iterator[Sets]:
    """Every list of `machines` sets of `copies` machines of which each machine is in `copies`, without its order: each
    can be given out so that all machines are in their own set."""
    choices = [frozenset(chosen) for chosen in combinations(range(machines), copies)]

    def extended(taken: Sets, first: int, room: tuple[int, ...]) -> Iterator[Sets]:
        if len(taken) == machines:
            yield taken
            return
        lowest = next(machine for machine in range(machines) if room[machine])
        for number in range(first, len(choices)):
            chosen = choices[number]
            if min(chosen) > lowest:
                return  # choices are in order of their lowest machine
            if all(room[machine] for machine in chosen):
                left = tuple(count - (machine in chosen) for machine, count in enumerate(room))
                yield from extended((*taken, chosen), number, left)

    yield from extended((), 0, (copies,) * machines)
