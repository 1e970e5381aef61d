"""What the pass of ranks decides: the order of the hosts, and what other orders would cost."""

from __future__ import annotations

from treadle.planner.documents.scalars import Count, Decisions, Rank
from treadle.planner.passes.ranks.problem import RanksProblem


class RanksDecisions(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="ranks"):
    """Orders are hosts of `problem` by place: order[0] gets the first ranks. Costs are those of the objective."""

    problem: RanksProblem
    order: tuple[Rank, ...]
    cost_ns: Count
    tie_ns: Count
    """Decides between orders of equal cost: for the objectives sum and bytes the other one of the two where only
    latencies are known, else 0; for bottleneck the sum."""
    original_ns: Count
    """The cost of the hosts as they were handed out."""
    median_ns: Count
    """The median cost of random orders."""
    worst: tuple[Rank, ...]
    """The dearest order that a search found, for measurements next to the best one."""
    worst_ns: Count
    time_ns: Count
    """What an allreduce is predicted to take in this order."""
