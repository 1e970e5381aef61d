"""Aggregation plans made by hand: racks of hosts, masters in turn, and the figures that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.plan import Certificate, Plan, Prediction, Provenance
from treadle.planner.passes.aggregation.check_rivals import counted_rivals
from treadle.planner.passes.aggregation.check_times import counted
from treadle.planner.passes.aggregation.decisions import AggregationDecisions, ChunkMasters
from treadle.planner.passes.aggregation.problem import AggregatingHost, AggregationProblem

Groups = tuple[tuple[int, ...], ...]
INSIDE_NS, ACROSS_NS = 800_000, 3_200_000
"""ns per MiB."""
RACKS: Groups = ((0, 1), (2, 3))


def problem_on(groups: Groups, *, size_bytes: int = 1 << 20, slots: int = 1, **fields: Any) -> AggregationProblem:
    """Hosts whose pairs cost more between groups than inside."""
    home = {host: number for number, group in enumerate(groups) for host in group}
    hosts = sorted(home)

    def matrix(inside: int, across: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(0 if i == j else inside if home[i] == home[j] else across for j in hosts) for i in hosts)

    return AggregationProblem(
        version=1,
        hosts=tuple(AggregatingHost(name=f"h{host}", slots=slots) for host in hosts),
        latency_ns=matrix(20_000, 50_000),
        ns_per_MiB=matrix(INSIDE_NS, ACROSS_NS),
        size_bytes=size_bytes,
        **fields,
    )


def decisions_on(
    problem: AggregationProblem, groups: Groups, chunks: int, near: Groups | None = None
) -> AggregationDecisions:
    """Masters in turn."""
    even = -(-problem.size_bytes // chunks)
    made = []
    for number in range(chunks):
        local = tuple(group[number // len(groups) % len(group)] for group in groups)
        left = min(even, problem.size_bytes - number * even)
        made.append(ChunkMasters(left, local, local[number % len(groups)], number % problem.connections))
    decisions = AggregationDecisions(
        problem=problem,
        levels=2 if len(groups) > 1 else 1,
        groups=groups,
        near=near or groups,
        chunks=tuple(made),
        total_bytes=0,
        across_bytes=0,
        time_ns=0,
    )
    return figured(decisions)


def figured(decisions: AggregationDecisions) -> AggregationDecisions:
    """With the figures of its masters."""
    return replace(decisions, **counted(decisions)._asdict(), rivals=tuple(counted_rivals(decisions)))


def plan_of(decisions: AggregationDecisions) -> Plan[AggregationDecisions]:
    return Plan(
        version=1,
        decisions=decisions,
        prediction=Prediction(time_us=decisions.time_ns / 1000),
        certificate=Certificate(
            verdict="accepted",
            checker="treadle.planner.passes.aggregation.check",
            objective=decisions.time_ns,
            lower_bound=0,
            unit="ns",
            argument="none",
            gap=1.0,
            optimal=False,
        ),
        provenance=Provenance(tool="by hand", method="masters in turn"),
    )


def small_plan(groups: Sequence[Sequence[int]] = RACKS) -> Plan[AggregationDecisions]:
    problem = problem_on(RACKS, chunk_bytes=1 << 18)
    return plan_of(decisions_on(problem, tuple(map(tuple, groups)), 4, RACKS))
