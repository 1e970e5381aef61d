"""Memory plans of one problem at several budgets as a curve of time over bytes, with peers at planning level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from treadle.passes.memory.pareto_figure import Tradeoff, pareto_svg, undominated
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.methods.heuristics import Planner, chen
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.variants import VARIANTS, restrict
from treadle.report.page import Picture, Section, Table

SEGMENTS, KEPT = "checkpointing (Chen et al.)", "plain PyTorch's calls, everything kept"


def sections_of_curves(plans: Mapping[str, Plan[MemoryDecisions]]) -> list[Section]:
    """A section for each problem that several of the plans solve at different budgets."""
    groups: list[tuple[MemoryProblem, dict[str, Plan[MemoryDecisions]]]] = []
    for name, plan in plans.items():
        problem = replace(plan.decisions.problem, budget_bytes=0)
        same = next((found for other, found in groups if other == problem), None)
        if same is None:
            groups.append((problem, {name: plan}))
        else:
            same[name] = plan
    return [_section(found) for _, found in groups if len(found) > 1]


def curve_svg(plans: Sequence[Plan[MemoryDecisions]], infeasible_bytes: int | None = None) -> str:
    """SVG of plans of one problem, with the checkpointing of Chen et al. and the step that keeps everything.

    infeasible_bytes: a budget that is proved to have no plan.
    """
    first = plans[0].decisions
    everything = (first.store_all_peak_bytes, first.store_all_ns)
    return pareto_svg(
        [_tradeoff(plan) for plan in plans],
        {label: reached for label, reached in peers(first.problem).items() if reached != [everything]},
        store_all=everything,
        infeasible_bytes=infeasible_bytes,
    )


def peers(problem: MemoryProblem) -> dict[str, list[tuple[int, int]]]:
    """(peak in bytes, time in ns) of what needs no solver, by label, fewest bytes first: each op by its own call, all
    of them kept, or the ends of 1, 2, .. segments ("Training Deep Nets with Sublinear Memory Cost", section 3).
    """
    try:
        plain = restrict(problem, VARIANTS["noop"])
    except InputError:  # of an op that has no call without a family
        plain = problem
    planner = Planner.of(plain)
    kept = planner.result(planner.base)
    runs = [planner.result(planner.schedule(nodes)) for nodes in chen(plain)]
    return {
        SEGMENTS: undominated((run.peak_bytes, run.time_ns) for run in runs),
        KEPT: [(kept.peak_bytes, kept.time_ns)],
    }


def _section(plans: Mapping[str, Plan[MemoryDecisions]]) -> Section:
    ordered = sorted(plans.items(), key=lambda item: (item[1].decisions.problem.budget_bytes, item[0]))
    names = ", ".join(name for name, _ in ordered)
    rows = tuple((name, *cells(plan)) for name, plan in ordered)
    picture = Picture(
        curve_svg([plan for _, plan in ordered]),
        "Time over bytes. Solid line: the least time found within these bytes. Dashed line: the lower bound; no plan "
        "is below it. Star: everything is kept, by the fastest implementations.",
    )
    return Section(
        "Memory: time at each budget",
        f"Plans of one problem at {len(plans)} budgets: {names}.",
        (Table(("plan", *HEAD), rows),),
        (picture,),
    )


FOUND_BY = {"start": "the budget below"}
HEAD = ("budget", "peak", "time", "overhead", "lower bound", "gap", "found by")


def cells(plan: Plan[MemoryDecisions]) -> tuple[str, ...]:
    """The cells of a plan under `HEAD`."""
    made, proof = plan.decisions, plan.certificate
    return (
        format_bytes(made.problem.budget_bytes),
        format_bytes(made.exact_peak_bytes),
        format_time(made.objective_ns),
        f"{round(made.objective_ns / max(1, made.store_all_ns) - 1, 4) + 0.0:+.2%}",
        format_time(proof.lower_bound),
        "optimal" if proof.optimal else f"{proof.gap:.2%}",
        FOUND_BY.get(plan.provenance.method, plan.provenance.method),
    )


def _tradeoff(plan: Plan[MemoryDecisions]) -> Tradeoff:
    made = plan.decisions
    bound = int(plan.certificate.lower_bound)
    return Tradeoff(made.problem.budget_bytes, made.exact_peak_bytes, made.objective_ns, bound)
