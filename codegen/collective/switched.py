"""What each rank does through a switch in a plan: what a runtime with multimem loads and stores executes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from treadle.codegen.collective.program import Buffer
from treadle.codegen.interface import Timeline
from treadle.planner.documents.hardware import InNetwork
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, SwitchStep
from treadle.planner.passes.collective.collectives import IN_SWITCH, form_of, positions
from treadle.planner.passes.collective.direct import is_in_switch
from treadle.planner.timeline.simulator import Resource, Schedule, Task


@dataclass(frozen=True, slots=True)
class SwitchShare:
    """`count` chunks side by side that `rank` does: with "reduce" among `ops` it loads the sum of `source` over the
    buffers of all `members`, else its own `source`; with "multicast" it stores that to `target` of all members, else
    to its own. Buffers and indices are those of a call out of place."""

    rank: int
    ops: tuple[InNetwork, ...]
    members: tuple[int, ...]
    source: tuple[Buffer, int]
    target: tuple[Buffer, int]
    count: int


def switch_shares(decisions: CollectiveDecisions) -> tuple[SwitchShare, ...]:
    """The shares of a checked plan, by rank and place; they are independent, so their order does not matter, nor do
    pieces: an element may be stored as soon as it is loaded. Inputs must be there before the first load, and no rank
    may leave before the last store.

    Raises InputError for a plan in which a chunk passes switches several times.
    """
    asked, ops = form_of(decisions), IN_SWITCH[decisions.collective]
    given, made = (
        [{chunk: index for index, chunk in enumerate(held)} for held in positions(members, decisions.ranks)]
        for members in (asked.before, asked.after)
    )
    members = {switch.name: switch.members for switch in decisions.switches}
    of_chunk: defaultdict[int, list[SwitchStep]] = defaultdict(list)
    for step in sorted(decisions.switched, key=lambda step: step.start_ns):
        of_chunk[step.chunk].append(step)
    found: list[SwitchShare] = []
    for chunk, steps in sorted(of_chunk.items(), key=lambda item: (item[1][0].rank, item[0])):
        rank, switch = steps[0].rank, steps[0].switch
        if tuple(step.op for step in steps) != ops or {(step.rank, step.switch) for step in steps} != {(rank, switch)}:
            raise InputError(f"chunk {chunk} passes switches several times, expected one {' and one '.join(ops)}")
        share = SwitchShare(rank, ops, members[switch], ("i", given[rank][chunk]), ("o", made[rank][chunk]), 1)
        if found and _follows(share, found[-1]):
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        else:
            found.append(share)
    return tuple(found)


def _follows(share: SwitchShare, last: SwitchShare) -> bool:
    """Whether `share` is of the same rank as `last`, and next to it in both buffers."""
    ends = [(buffer, index + last.count) for buffer, index in (last.source, last.target)]
    return [share.source, share.target] == ends and (share.rank, share.members) == (last.rank, last.members)


def switched_timeline(decisions: CollectiveDecisions) -> Timeline:
    """The steps of the plan while they use ports, without the latency of the switch behind; a resource for each rank
    and op."""
    steps = sorted(decisions.switched, key=lambda step: (step.rank, step.op, step.start_ns, step.chunk))
    alphas = {switch.name: switch.alpha_ns for switch in decisions.switches}
    starts, ends = [step.start_ns for step in steps], [step.end_ns - alphas[step.switch] for step in steps]
    tasks = tuple(
        Task(f"{step.op} chunk {step.chunk}", end - start, (f"rank {step.rank} {step.op}",))
        for step, start, end in zip(steps, starts, ends, strict=True)
    )
    resources = tuple(Resource(name) for name in dict.fromkeys(task.resources[0] for task in tasks))
    return Timeline(tasks, resources, Schedule(starts, ends, decisions.makespan_ns, {}, {}))


def require_messages(decisions: CollectiveDecisions, plan_file: str = "") -> None:
    """Raises InputError for what switches do: it is no program of messages between ranks."""
    if decisions.switched:
        names = ", ".join(switch.name for switch in decisions.switches)
        targets = ["cuda"] if is_in_switch(decisions) else []
        targets += ["mscclpp-json"] if "multicast" in IN_SWITCH[decisions.collective] else []
        others = f"generate it with --target {' or '.join(targets)}, or " if targets else ""
        raise InputError(
            f"in this plan switch {names} adds up or multicasts, which no program of messages can say; {others}plan "
            "with another --method than nvls",
            where=plan_file,
        )
