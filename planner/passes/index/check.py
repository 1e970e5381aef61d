"""Whether an index plan takes the fastest measured configuration that is allowed, from its decisions alone.

It goes over the candidates one by one and shares no code with what chooses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from treadle.planner.passes.index.configurations import IndexConfiguration, name_of_leaves
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.problem import PAIR_BYTES, Finding, IndexCandidate, IndexProblem


def check(decisions: IndexDecisions) -> list[str]:
    """Findings, each with its path; none for a plan that takes the fastest configuration that is allowed."""
    return sound(decisions) or not_fastest(decisions)


def sound(decisions: IndexDecisions) -> list[str]:
    """Findings; none for a plan of a configuration that is allowed, with its figures, be there faster ones."""
    unsound = [*decisions.problems()]
    return _lines(unsound or _figures(decisions))


def not_fastest(decisions: IndexDecisions) -> list[str]:
    """Where a sound plan takes another configuration than the fastest, or calls another one second."""
    return _lines(_rivals(decisions))


def is_allowed(problem: IndexProblem, candidate: IndexCandidate) -> bool:
    """Whether the memory ratio allows a candidate; all without a ratio."""
    run, ratio = candidate.measured, problem.max_memory_ratio
    if run is None or ratio is None:
        return True
    return run.bytes / (problem.keys_at_end * PAIR_BYTES) <= ratio


def time_of(candidate: IndexCandidate) -> int:
    """All windows together; where nothing was measured, the prediction without a fraction of a ns."""
    if candidate.measured is not None:
        return sum(window for window in candidate.measured.windows_ns)
    return -int(-candidate.predicted_ns // 1)


def _figures(decisions: IndexDecisions) -> Iterator[Finding]:
    problem = decisions.problem
    for name, time in (("chosen", decisions.time_ns), ("second", decisions.second_ns)):
        configuration: IndexConfiguration | None = getattr(decisions, name)
        if configuration is None:
            continue
        candidate = _candidate(problem, configuration)
        if problem.top and candidate.measured is None:
            yield f"$.decisions.{name}", candidate.name, "one that was measured"
        elif not is_allowed(problem, candidate):
            yield f"$.decisions.{name}", candidate.name, f"one within the memory ratio {problem.max_memory_ratio:g}"
        elif time != time_of(candidate):
            field = "time_ns" if name == "chosen" else "second_ns"
            what = "its windows together" if problem.top else "its prediction"
            yield f"$.decisions.{field}", f"{time}", f"{time_of(candidate)}, {what}"
    run = _candidate(problem, decisions.chosen).measured
    if decisions.bytes != (None if run is None else run.bytes):
        expected = "none, since nothing was measured" if run is None else f"{run.bytes}, as measured"
        yield "$.decisions.bytes", f"{decisions.bytes}", expected
    over = sum(not is_allowed(problem, each) for each in problem.candidates)
    if decisions.over_memory != over:
        yield "$.decisions.over_memory", f"{decisions.over_memory}", f"{over}, by the bytes of those measured"


def _rivals(decisions: IndexDecisions) -> Iterator[Finding]:
    """Candidates before the chosen one and its second. Equal times go by prediction, equal predictions by place."""
    first: tuple[int, float, int] | None = None
    after: tuple[int, float, int] | None = None
    for place, each in enumerate(decisions.problem.candidates):
        if (decisions.problem.top and each.measured is None) or not is_allowed(decisions.problem, each):
            continue
        rank = (time_of(each), each.predicted_ns, place)
        if first is None or rank < first:
            first, after = rank, first
        elif after is None or rank < after:
            after = rank
    for name, rank_of in (("chosen", first), ("second", after)):
        found: IndexConfiguration | None = getattr(decisions, name)
        expected = None if rank_of is None else decisions.problem.candidates[rank_of[2]]
        if found != (None if expected is None else expected.configuration):
            seen = "none" if found is None else name_of_leaves(found)
            right = "none" if expected is None else f"{expected.name}, which takes {time_of(expected)} ns"
            yield f"$.decisions.{name}", seen, right


def _candidate(problem: IndexProblem, configuration: IndexConfiguration) -> IndexCandidate:
    return next(each for each in problem.candidates if each.configuration == configuration)


def _lines(findings: Iterable[Finding]) -> list[str]:
    return [f"{path}: found {seen}, expected {expected}" for path, seen, expected in findings]
