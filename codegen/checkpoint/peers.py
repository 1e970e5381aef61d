"""What other libraries can carry of a placement: groups in which all hold each other's states, or pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.planner.errors import InputError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions

Holders = Sequence[Sequence[int]]


class Cliques(NamedTuple):
    """Groups of machines in which each holds the states of all, itself among them. `widened` are those where a machine
    holds more than the plan asks for."""

    groups: tuple[tuple[int, ...], ...]
    widened: tuple[tuple[int, ...], ...]

    @property
    def hosted(self) -> int:
        """The most states that one machine holds."""
        return max(map(len, self.groups))


def cliques_of(holders: Holders) -> Cliques:
    """The smallest groups that give each machine's state to all its holders, in the order of their first machines.

    A group of the plan is one of them. A ring becomes one group of all its machines, which keeps every state that the
    ring keeps.
    """
    group_of = list(range(len(holders)))
    for machine, held in enumerate(holders):
        joined = {group_of[holder] for holder in (machine, *held)}
        group_of = [min(joined) if group in joined else group for group in group_of]
    members: dict[int, list[int]] = {}
    for machine, group in enumerate(group_of):
        members.setdefault(group, []).append(machine)
    groups = tuple(map(tuple, members.values()))
    widened = [group for group in groups if any(set(holders[machine]) != set(group) for machine in group)]
    return Cliques(groups, tuple(widened))


def require_carried(decisions: CheckpointDecisions, found: Cliques, where: str) -> None:
    """Raises InputError for a group larger than the last ring of a published placement, and for more memory than the
    machines have."""
    problem = decisions.problem
    largest, most = found.hosted, 2 * problem.copies - 1
    if largest > most:
        raise InputError(
            f"found a placement that joins {largest} machines, expected groups of at most {most} for nvrx, which "
            "copies every state of a group to all its machines; plan again with groups",
            where=where,
        )
    needed = 2 * largest * problem.devices * problem.state_bytes
    if found.widened and problem.host_bytes is not None and needed > problem.host_bytes:
        raise InputError(
            f"found {problem.host_bytes} bytes of host memory, expected {needed} for nvrx, where each machine of the "
            f"ring holds {largest} states in place of {problem.copies}",
            where=where,
        )


def jump_of(holders: Holders) -> int | None:
    """The distance J of the partners, where machines 0 to J-1 hold the states of J to 2J-1 and they theirs, and
    so on for each 2J machines; None for any other placement."""
    if any(len(held) != 2 for held in holders):
        return None
    jump = max(holders[0]) - min(holders[0])
    expected = [machine + jump if machine % (2 * jump) < jump else machine - jump for machine in range(len(holders))]
    paired = all(set(held) == {machine, expected[machine]} for machine, held in enumerate(holders))
    return jump if paired else None
