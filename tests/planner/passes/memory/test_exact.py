"""Every form of the 0-1 program, and every solver, against the exact dynamic program on random problems.

`TREADLE_EXACT=1000` solves 1,000 problems in all forms; without it some problems are solved in two forms each.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import pytest

from tests.oracles.exact_memory import optima
from tests.planner.passes.memory import cases
from tests.planner.passes.memory.instances import instance
from treadle.planner.passes.memory.formulation.checkpoint import formulate
from treadle.planner.passes.memory.formulation.switches import Switches
from treadle.planner.passes.memory.formulation.tables import Formulation
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.solver import Status, solve

ASKED = int(os.environ.get("TREADLE_EXACT", "0"))
COUNT, EACH = (ASKED, 99) if ASKED else (200, 2)
PARTS = 8


def cp_sat(program: Formulation) -> int | None:
    solution = solve(program.model, backend="cp_sat")
    assert solution.status in (Status.OPTIMAL, Status.INFEASIBLE)
    return solution.objective if solution.found else None


def highs(program: Formulation) -> int | None:
    """In this process: a child for each of the many small programs takes longer than they do."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    form = program.model.matrix_form()
    result = milp(
        form.cost,
        integrality=form.integer.astype(np.int64),
        bounds=Bounds(form.lower, form.upper),
        constraints=LinearConstraint(form.matrix, form.row_lower, form.row_upper),
        options={"mip_rel_gap": 0},
    )
    assert result.status in (0, 2), result.message
    return None if result.status == 2 else round(result.fun + form.offset)


PLAIN = Switches(
    no_idle_rows=False,
    useful_only=False,
    useful_feeds=False,
    no_dominated=False,
    chains=False,
    cuts=False,
    local="long",
)
FORMS: dict[str, tuple[Callable[[Formulation], int | None], str, Switches]] = {
    "compact": (highs, "entering", Switches()),
    "compact, CP-SAT": (cp_sat, "entering", Switches(integral=True)),
    "compact, leaving": (highs, "leaving", Switches()),
    "literal products": (highs, "entering", Switches(literal_products=True)),
    "literal products, leaving, CP-SAT": (cp_sat, "leaving", Switches(literal_products=True, integral=True)),
    "exact local": (highs, "entering", Switches(local="long")),
    "exact local, leaving": (highs, "leaving", Switches(local="long")),
    "exact local without trims": (highs, "entering", PLAIN),
}


@pytest.mark.parametrize("part", range(PARTS))
def test_every_form_finds_the_optimum(part):
    names = sorted(FORMS)
    for seed in range(part, COUNT, PARTS):
        problem = instance(seed)
        assert list(problem.problems()) == []
        best = dict(zip(("entering", "leaving"), optima(msgspec.to_builtins(problem)), strict=True))
        for name in [names[(seed // PARTS + step) % len(names)] for step in range(min(EACH, len(names)))]:
            solver, dependency_set, switches = FORMS[name]
            program = formulate(problem, dependency_set=dependency_set, switches=switches)
            assert solver(program) == best[dependency_set], (seed, name)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (cases.a(6), (15, 16)),
        (cases.b(8), (17, 17)),
        (cases.c(33, conv=True, out=True, intermediate=True), (25, 25)),
        (cases.c(48, conv=True), (26, 27)),
        (cases.d(12), (29, 29)),
        (cases.d(13, inplace=False), (29, 32)),
        (cases.e(10), (18, 18)),
        (cases.f(13), (8, 8)),
        (cases.f(11), (None, None)),
    ],
)
def test_the_dynamic_program_finds_what_was_worked_out_by_hand(problem: MemoryProblem, expected):
    assert optima(msgspec.to_builtins(problem)) == expected


def test_without_the_trimmed_feeds_every_tensor_that_anything_reads_is_charged():
    """On a skip connection MONeT's superset of what a recomputation holds costs time; the exact set does not."""
    published = Switches(local="superset", useful_feeds=False)
    assert highs(formulate(cases.b(8), switches=published)) == 18
    exact = Switches(useful_feeds=False)
    assert highs(formulate(cases.b(8), switches=exact)) == 17
