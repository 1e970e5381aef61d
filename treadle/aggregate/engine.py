"""Executes an aggregation plan as one rank: the actions of `treadle.codegen.aggregation.script` over a wire."""

from __future__ import annotations

from treadle.codegen.aggregation.script import ranks_of, script_of, streams_of
from treadle.codegen.collective.program import CollectiveProgram, RankProgram
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.runtime.collective.messages import Executor, OnWire
from treadle.runtime.collective.wire.native import RankWire


def engine(decisions: AggregationDecisions, wire: RankWire) -> Executor:
    """A function that sums up tensors of any size in place as the rank of `wire`, each cut into the plan's chunks."""
    chunks, ranks = len(decisions.chunks), ranks_of(decisions)
    shape = CollectiveProgram(
        name="aggregation",
        collective="allreduce",
        ranks=(RankProgram(chunks, chunks, 0, ()),) * ranks,
        chunks_per_loop=chunks,
        channels=1,
        inplace=True,
        outofplace=False,
    )
    script = script_of(decisions, wire.rank)
    what = repr((decisions.groups, decisions.chunks))
    carrier = OnWire(wire, script, ranks, what, streams_of(decisions, script))
    return Executor(shape, wire.rank, carrier, inplace=True)
