"""Decisions of a problem: those of the fastest configuration, or those of a given one with the figures of today."""

from __future__ import annotations

from treadle.planner.errors import InputError
from treadle.planner.passes.index.choosing import choice_of, over_memory, taken_ns
from treadle.planner.passes.index.configurations import IndexConfiguration, name_of_leaves
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.problem import IndexCandidate, IndexProblem


def decided(problem: IndexProblem) -> IndexDecisions:
    """The decisions of a sound problem. Raises InfeasibleError where all measured ones are over the memory."""
    return _decisions(problem, *choice_of(problem))


def with_problem(decisions: IndexDecisions, problem: IndexProblem) -> IndexDecisions:
    """The decisions with the same configurations, and their figures from `problem`.

    Raises InputError where the chosen one has none of the kind that the plan has.
    """
    chosen = _timed(problem, decisions.chosen)
    if chosen is None or bool(problem.top) != bool(decisions.problem.top):
        kind = "measured" if decisions.problem.top else "only predicted"
        raise InputError(f"{name_of_leaves(decisions.chosen)} is not {kind} today, as in the plan; plan again")
    over = sum(over_memory(problem, each) for each in problem.candidates)
    second = None if decisions.second is None else _timed(problem, decisions.second)
    return _decisions(problem, chosen, second, over)


def _timed(problem: IndexProblem, configuration: IndexConfiguration) -> IndexCandidate | None:
    """The candidate of a configuration, measured where any is; None if there is no such one."""
    for each in problem.candidates:
        if each.configuration == configuration and (each.measured is not None or not problem.top):
            return each
    return None


def _decisions(
    problem: IndexProblem, chosen: IndexCandidate, second: IndexCandidate | None, over: int
) -> IndexDecisions:
    return IndexDecisions(
        problem=problem,
        chosen=chosen.configuration,
        time_ns=taken_ns(chosen),
        bytes=None if chosen.measured is None else chosen.measured.bytes,
        second=None if second is None else second.configuration,
        second_ns=None if second is None else taken_ns(second),
        over_memory=over,
    )
