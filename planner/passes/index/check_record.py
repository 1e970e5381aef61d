"""Whether certificate and provenance of an index plan state what its decisions do.

Like `check` this compares with the candidates themselves and shares no code with what makes the record.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.tuned import RankedChoice, Tuned
from treadle.planner.passes.index.check import is_allowed, time_of
from treadle.planner.passes.index.configurations import name_of_leaves
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.problem import IndexCandidate, IndexProblem


def record_findings(plan: Plan[IndexDecisions]) -> Iterator[str]:
    """What the certificate claims beyond the decisions, and where the record of measurements is another one."""
    problem, provenance = plan.decisions.problem, plan.provenance
    if plan.certificate.lower_bound > problem.loop_ns:
        claimed = f"lower bound {plan.certificate.lower_bound:g} ns"
        yield f"certificate: {claimed}, reading the operations was measured to take {problem.loop_ns} ns"
    if problem.top and (provenance.limit_fired or provenance.interrupted) != problem.cut_short:
        stated = "a limit or Ctrl-C" if provenance.limit_fired or provenance.interrupted else "nothing"
        yield f"provenance: {stated} ended the work, the problem has cut_short {str(problem.cut_short).lower()}"
    if len(provenance.tuned) != min(problem.top, 1):
        expected = "one, of leaves" if problem.top else "none, since nothing was measured"
        yield f"provenance.tuned: found {len(provenance.tuned)} records, expected {expected}"
    for record in provenance.tuned if problem.top else ():
        yield from (f"provenance.tuned[0]{line}" for line in _differences(plan.decisions, record))


def _differences(decisions: IndexDecisions, record: Tuned) -> Iterator[str]:
    problem = decisions.problem
    stated = {
        "what": "leaves",
        "model": problem.model,
        "top": problem.top,
        "chosen": name_of_leaves(decisions.chosen),
        "unlisted": len(problem.candidates) - len(record.ranked),
    }
    for name, expected in stated.items():
        if (found := getattr(record, name)) != expected:
            yield f".{name}: found {found}, expected {expected}"
    order = sorted(problem.candidates, key=lambda each: each.predicted_ns)
    for place, (ranked, candidate) in enumerate(zip(record.ranked, order, strict=False)):
        if wrong := _other(problem, ranked, candidate):
            yield f".ranked[{place}].{wrong}"
            return


def _other(problem: IndexProblem, ranked: RankedChoice, candidate: IndexCandidate) -> str:
    """The first field of a ranked choice that is not the candidate's, and what that is; empty if there is none."""
    measured = None if candidate.measured is None else time_of(candidate)
    stated = {"name": candidate.name, "predicted_ns": candidate.predicted_ns, "measured_ns": measured}
    for name, expected in stated.items():
        if (found := getattr(ranked, name)) != expected:
            return f"{name}: found {found}, expected {expected}"
    if candidate.failed is not None or is_allowed(problem, candidate):
        return "" if ranked.excluded == candidate.failed else f"excluded: {_found(ranked)}{candidate.failed or 'none'}"
    return "" if ranked.excluded is not None else f"excluded: {_found(ranked)}a reason, as it exceeds the memory ratio"


def _found(ranked: RankedChoice) -> str:
    return f"found {ranked.excluded or 'none'}, expected "
