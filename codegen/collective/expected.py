"""The outputs that a plan asks of its program: which input chunk, or sum of input chunks, each chunk ends as."""

from __future__ import annotations

from treadle.codegen.collective.symbolic import ExpectedOutputs
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.collectives import form_of, positions


def expected_outputs(decisions: CollectiveDecisions) -> ExpectedOutputs:
    """(rank, output chunk) -> the contributions that it is the sum of, in chunks of the program (cut into instances). A
    chunk that several ranks hold before comes from the one that the plan sends it from."""
    asked, cut = form_of(decisions), decisions.instances
    given = [{chunk: index for index, chunk in enumerate(held)} for held in positions(asked.before, decisions.ranks)]
    sender = {(move.chunk, move.dst): move.src for move in decisions.transfers if not move.reduce}
    members = {switch.name: switch.members for switch in decisions.switches}
    for step in decisions.switched:
        if step.op == "multicast":
            sender |= {(step.chunk, member): step.rank for member in members[step.switch] if member != step.rank}
    result: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
    for rank, chunks in enumerate(positions(asked.after, decisions.ranks)):
        for index, chunk in enumerate(chunks):
            if asked.reducing:
                sources = sorted(asked.before[chunk])
            else:
                source = rank
                while source not in asked.before[chunk]:
                    source = sender[chunk, source]
                sources = [source]
            for part in range(cut):
                value = tuple((source, given[source][chunk] * cut + part) for source in sources)
                result[rank, index * cut + part] = value
    return result
