"""The plans of Cupcake for a problem: groups that all have the option of one compressor, or that or none.

The model of Cupcake finds the groups, the timeline of the iteration prices them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from treadle.planner.errors import LimitError
from treadle.planner.passes.compression.cupcake import best_grouping
from treadle.planner.passes.compression.cupcake_search import Searched, faithful_search
from treadle.planner.passes.compression.decisions import GradientGroup, Groups
from treadle.planner.passes.compression.group_costs import Decoding, GroupCosts, Grouping, costs_of
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.planner.search.clock import Expired, never

NODE_LIMIT = 200_000
"""Groups that the search of the paper tries for each compressor; proving a few hundred gradients may take days."""
WIDTH = 32
"""States at a boundary where a group may have one of several options."""


@dataclass(frozen=True)
class FusedPlan:
    """Groups and their time in the model of Cupcake. searched: the search that found them; None for the exact one.
    cut: it ended early."""

    groups: Groups
    model_ns: int
    searched: Searched | None = None
    cut: bool = False


def published(problem: CompressionProblem, expired: Expired = never) -> dict[str, FusedPlan]:
    """The groups that algorithm 5.1 finds for each compressor, without decoding, as in the paper; by name."""
    found: dict[str, FusedPlan] = {}
    with suppress(LimitError):
        for name in _names(problem):
            costs = costs_of(problem, name, expired).with_decoding("ignore")
            searched = faithful_search(costs, node_limit=NODE_LIMIT, expired=expired)
            found[f"algorithm 5.1, {name}"] = _plan([costs], searched.grouping, searched)
    return found


def exact_groups(
    problem: CompressionProblem,
    *,
    decoding: Decoding = "fold",
    expired: Expired = never,
) -> dict[str, FusedPlan]:
    """The best groups in the model for each compressor and for none, and groups with one or the other; by name."""
    found: dict[str, FusedPlan] = {}
    with suppress(LimitError):
        plain = costs_of(problem, None, expired).with_decoding(decoding)
        uncompressed = best_grouping([plain], expired=expired)
        found["groups, uncompressed"] = _plan([plain], uncompressed)
        for name in _names(problem):
            costs = costs_of(problem, name, expired).with_decoding(decoding)
            compressed = best_grouping([costs], expired=expired)
            found[f"groups, {name}"] = _plan([costs], compressed)
            starts = (uncompressed, replace(compressed, chosen=(1,) * len(compressed.ends)))
            mixed = best_grouping([plain, costs], starts=starts, width=WIDTH, expired=expired)
            found[f"groups, {name} or uncompressed"] = _plan([plain, costs], mixed)
    return found


def _names(problem: CompressionProblem) -> tuple[str, ...]:
    return () if problem.compressions == 0 else problem.names


def _plan(alternatives: list[GroupCosts], grouping: Grouping, searched: Searched | None = None) -> FusedPlan:
    groups, first = [], 0
    for end, number in zip(grouping.ends, grouping.chosen, strict=True):
        costs = alternatives[number]
        groups.append(GradientGroup(first=first, last=end, compressor=costs.compressor, steps=costs.steps))
        first = end + 1
    cut = grouping.cut if searched is None else not searched.complete
    return FusedPlan(tuple(groups), grouping.ns, searched, cut)
