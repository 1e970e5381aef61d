"""Who holds whose state, read again for the checker: balanced, turn by turn, and of the kind that the plan says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions

Finding = tuple[str, object, object]
"""Path, what was found there, and what was expected."""
Held = Sequence[tuple[int, ...]]
"""The holders of each machine's state."""


def placement_findings(decisions: CheckpointDecisions) -> Iterator[Finding]:
    """What is wrong with the holders: each state on as many machines as there are copies, its own first, and in each
    turn every machine sends one state and receives one."""
    copies, path = decisions.problem.copies, "$.decisions.holders"
    for owner, held in enumerate(decisions.holders):
        if len(held) != copies:
            yield f"{path}[{owner}]", f"{len(held)} holders", f"{copies}"
        elif held[0] != owner:
            yield f"{path}[{owner}][0]", held[0], f"{owner}, the machine itself"
        elif len(set(held)) < copies:
            yield f"{path}[{owner}]", "a machine twice", f"{copies} machines"
        else:
            continue
        return
    for turn in range(1, copies):
        received = Counter(held[turn] for held in decisions.holders)
        machine, times = received.most_common(1)[0]
        if times > 1:
            yield path, f"{times} states that machine {machine} receives as copy {turn}", "1, since all send at once"
            return
    yield from _kind(decisions)


def published_holders(machines: int, copies: int) -> list[tuple[int, ...]]:
    """Groups in the order of numbers, the last one a ring of what is left (GEMINI, algorithm 6.1)."""
    found = []
    ring_begins = (machines // copies - 1) * copies
    for machine in range(machines):
        begin = min(machine // copies * copies, ring_begins)
        length = copies if begin < ring_begins else machines - ring_begins
        found.append(tuple(begin + (machine - begin + step) % length for step in range(copies)))
    return found


def _kind(decisions: CheckpointDecisions) -> Iterator[Finding]:
    """Whether the holders are what the placement is called. Any balanced one may be called searched."""
    machines, copies = decisions.problem.machines, decisions.problem.copies
    held, path = decisions.holders, "$.decisions.placement"
    numbers: dict[frozenset[int], int] = {}
    sets = [numbers.setdefault(frozenset(each), len(numbers)) for each in held]
    alone = [owner for owner in range(machines) if any(sets[each] != sets[owner] for each in held[owner])]
    ring = copies + machines % copies
    match decisions.placement:
        case "groups" if alone:
            yield path, "groups", f"another name: machine {alone[0]} is in no group that holds all of its states"
        case "groups and ring" if len(alone) != ring or not _is_ring(alone, held):
            yield path, "groups and ring", f"groups of {copies} and one ring of {ring} machines"
        case "ring" if not _is_ring(range(machines), held):
            yield path, "ring", f"one ring of all {machines} machines"


def _is_ring(machines: Sequence[int], held: Held) -> bool:
    """Whether the holders of each are those that follow it in one round of all of them, if any."""
    if len(held[0]) == 1:
        return True
    order = [machines[0]]
    while (following := held[order[-1]][1]) != machines[0] and len(order) < len(machines):
        order.append(following)
    around = order + order
    return sorted(order) == [*machines] and all(
        held[owner] == tuple(around[place : place + len(held[owner])]) for place, owner in enumerate(order)
    )
