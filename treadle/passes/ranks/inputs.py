"""What `treadle plan ranks` is given, as a problem and the documents it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from treadle.cli.output import note
from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.nearest import unknown
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import Document
from treadle.planner.errors import InputError
from treadle.planner.machine.cost_age import old_costs, utc_now
from treadle.planner.machine.host_costs import Repair
from treadle.planner.passes.ranks.extract import problem_of
from treadle.planner.passes.ranks.problem import Algorithm, Objective, RanksProblem

LIBRARY: dict[str, Algorithm] = {each: each for each in get_args(Algorithm) if each != "plan"}
"""The algorithms of libraries by name."""
Given = tuple[RanksProblem, dict[str, InputRef]]


def by_hand(file: str) -> Given:
    """The problem in a file. Raises InputError for a file that holds another thing."""
    problem = store.load(file, RanksProblem)
    return problem, {"problem": _reference(file, problem)}


def from_costs(
    file: str,
    collective: str,
    *,
    objective: Objective = "sum",
    size_bytes: int | None = None,
    factors: Sequence[int] = (),
    repair: Repair | None = None,
) -> Given:
    """The problem of the hosts of a cost matrix under a library's algorithm or a plan in a file. Raises InputError as
    `problem_of` and `hops_of`, and for files that are no documents."""
    costs = store.load(file, CostMatrix)
    inputs = {"costs": _reference(file, costs)}
    if warning := old_costs(costs, file, utc_now()):
        note(warning)
    if collective in LIBRARY:
        algorithm = LIBRARY[collective]
        problem = problem_of(
            costs,
            algorithm,
            objective=objective,
            size_bytes=size_bytes,
            factors=factors,
            repair=repair,
            where=file,
        )
        if size_bytes is not None and problem.ns_per_MiB is None:
            note(f"{file} has latencies only: costs do not depend on --size, which `treadle run` measures")
        return problem, inputs
    if not Path(collective).exists():
        raise InputError(f"{unknown(collective, sorted(LIBRARY))}, or the file of a plan", where="--collective")
    if size_bytes is not None:
        raise InputError("found a size, expected none: a plan has its own", where="--size")

    from treadle.passes.ranks.hops import collective_plan, hops_of

    plan = store.load(collective, Plan)
    decisions = collective_plan(plan, collective)
    problem = problem_of(
        costs,
        "plan",
        objective=objective,
        size_bytes=decisions.input_bytes,
        factors=factors,
        hops=hops_of(decisions, len(costs.hosts), costs.hosts[0].slots, collective),
        repair=repair,
        where=file,
    )
    return problem, {**inputs, "plan": _reference(collective, plan)}


def _reference(file: str, document: Document) -> InputRef:
    return InputRef(file=Path(file).name, digest=store.digest(document))
