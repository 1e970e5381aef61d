"""What each rank does under an aggregation plan, as the actions that the CPU runtime executes (PLink, "AggEngine").

PLink's primitives for a chunk on a host: Fetch and Deliver are nothing, since a chunk is summed up where the caller has
it. ReceiveFrom are actions that add what arrives, one after the other in a fixed order, or the one that takes the
total; SendTo are actions that send. An action waits for those before it of the same chunk only, so chunks and levels
overlap.

The messages are those of the program of `lower.collective_of`; but every rank makes its own actions, in milliseconds,
so that a plan can be changed while a job runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.codegen.collective.actions import Action, Range, TaggedMessage
from treadle.codegen.collective.program import BlockStep, Place, StepType
from treadle.planner.passes.aggregation.decisions import AggregationDecisions


def ranks_of(decisions: AggregationDecisions) -> int:
    """Ranks are numbered host by host."""
    return len(decisions.problem.hosts) * decisions.problem.hosts[0].slots


def neighbours(decisions: AggregationDecisions, number: int, rank: int) -> tuple[int | None, list[int]]:
    """To which rank `rank` sends what it has of chunk `number`, None where it has the total; and which ranks send it
    theirs, in the order in which it adds them: other ranks of its host, members of its group, masters of others."""
    slots, chunk = decisions.problem.hosts[0].slots, decisions.chunks[number]
    host, slot = divmod(rank, slots)
    own = number % slots
    if slot != own:
        return host * slots + own, []
    group, local = next(
        (group, local) for group, local in zip(decisions.groups, chunk.local, strict=True) if host in group
    )
    inside = [host * slots + other for other in range(slots) if other != own]
    members = [member for member in group if member != local] if host == local else []
    masters = [other for other in chunk.local if other != chunk.top] if host == chunk.top else []
    parent = None if host == chunk.top else chunk.top if host == local else local
    children = inside + [other * slots + own for other in (*members, *masters)]
    return None if parent is None else parent * slots + own, children


def script_of(decisions: AggregationDecisions, rank: int) -> tuple[Action, ...]:
    """The actions of `rank`, chunk by chunk."""
    script: list[Action] = []
    for number in range(len(decisions.chunks)):
        script += _chunk(len(script), number, rank, *neighbours(decisions, number, rank))
    return tuple(script)


def streams_of(decisions: AggregationDecisions, script: tuple[Action, ...]) -> list[int]:
    """Over which connection each action of a script sends."""
    return [decisions.chunks[action.place.threadblock].connection for action in script]


def _chunk(first: int, number: int, rank: int, parent: int | None, children: list[int]) -> Iterator[Action]:
    """The actions of one chunk, the first of which has number `first` among all."""
    where: Range = ("i", number, 1)
    count = 0
    last: tuple[int, ...] = ()

    def action(kind: StepType, received: int | None, sent: int | None, behind: tuple[int, ...] = ()) -> Action:
        nonlocal count
        count += 1
        step = BlockStep(kind, ("i", number), ("i", number))
        return Action(
            place=Place(rank, number, count - 1),
            step=step,
            after=last,
            after_leaving=(),
            behind=behind,
            reads=() if kind == "r" else (where,),
            writes=None if kind == "s" else where,
            receives=None if received is None else TaggedMessage(received, rank, number, 1),
            sends=None if sent is None else TaggedMessage(rank, sent, number, 1),
        )

    for child in children:
        yield action("rrc", child, None)
        last = (first + count - 1,)
    if parent is not None:
        yield action("s", None, parent)
        sent = last = (first + count - 1,)
        yield action("r", parent, None, behind=sent)
        last = (first + count - 1,)
    for child in children:
        yield action("s", None, child)
