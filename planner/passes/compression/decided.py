"""Groups as decisions: the order of collectives, times and bytes, all from the timeline of the groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from treadle.planner.documents.scalars import many
from treadle.planner.passes.compression.decisions import CompressionDecisions, CompressionRival, GradientGroup, Groups
from treadle.planner.passes.compression.options import Option, options
from treadle.planner.passes.compression.payload import works_of
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.planner.passes.compression.timeline_of import order_of, tasks_of, time_ns
from treadle.planner.timeline.simulator import simulate

UNCOMPRESSED = "uncompressed"
"""The plan that sends every gradient as it is and alone."""


def plain_option(problem: CompressionProblem) -> Option:
    """The first uncompressed option: an allreduce, between nodes of several ranks with a reduce-scatter before it and
    an allgather after it inside the node."""
    return options((), problem.hierarchical)[0]


def plain_groups(problem: CompressionProblem) -> Groups:
    """Every gradient as it is and in a group of its own."""
    steps = plain_option(problem)
    return tuple(GradientGroup(first=place, last=place, steps=steps) for place in range(len(problem.gradients)))


def sent_bytes(problem: CompressionProblem, groups: Sequence[GradientGroup]) -> int:
    """The most bytes that a rank sends to others in an iteration: those of the busiest one in each step, added up."""
    total = 0
    for group in groups:
        total += sum(work.sent_bytes for work in works_of(problem, group))
    return total


def decided(
    problem: CompressionProblem,
    groups: Sequence[GradientGroup],
    rivals: Mapping[str, Sequence[GradientGroup]] | None = None,
    cut: Collection[str] = (),
) -> CompressionDecisions:
    """The decisions of `groups`, which cover the gradients of `problem` in their order. rivals: other groups by the
    name of their method, next to those without compression; cut: names of methods that ended early. Raises InputError
    for steps that are no option."""
    plain = plain_groups(problem)
    others = {UNCOMPRESSED: plain, **(rivals or {})} if problem.ranks > 1 else {}
    tasks, resources = tasks_of(problem, groups)
    schedule = simulate(tasks, resources)
    return CompressionDecisions(
        problem=problem,
        groups=tuple(groups),
        order=order_of(groups, tasks, schedule),
        time_ns=problem.forward_ns + schedule.makespan,
        uncompressed_ns=time_ns(problem, plain),
        sent_bytes=sent_bytes(problem, groups),
        rivals=tuple(
            CompressionRival(name=name, groups=tuple(other), time_ns=time_ns(problem, other), cut=name in cut)
            for name, other in others.items()
        ),
    )


def described(decisions: CompressionDecisions) -> str:
    """A few words: how many groups there are and which compressors they have, or that nothing is compressed."""
    groups = decisions.groups
    whole = f"{many(len(decisions.problem.gradients), 'gradient')} in {many(len(groups), 'group')}"
    used: dict[str, int] = {}
    for group in groups:
        if group.compressor is not None:
            used[group.compressor] = used.get(group.compressor, 0) + 1
    if not used:
        return f"compress nothing: {whole} as they are"
    named = ", ".join(f"{name} for {count}" for name, count in sorted(used.items()))
    plain = len(groups) - sum(used.values())
    rest = f", {plain} as they are" if plain else ""
    return f"{whole}: {named}{rest}"
