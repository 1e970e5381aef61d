"""The gain from each family of implementations: MONeT's ablation (Figures 4.5 and A.1), sizes of its program (4.5)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction

from msgspec.structs import replace

from benchmarks.common import Row, Table, progress
from benchmarks.memory.convolutions import post_optimise
from benchmarks.memory.networks import NETWORKS, problem_of
from benchmarks.memory.planning import percent
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.memory.formulation.checkpoint import SWITCHES, formulate
from treadle.planner.passes.memory.formulation.switches import Switches
from treadle.planner.passes.memory.lower import lower, store_all
from treadle.planner.passes.memory.planning import plan_of, prepared, with_budget
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.search.attempts import MemoryOptions
from treadle.planner.passes.memory.search.rounds import search
from treadle.planner.passes.memory.simulate import simulate
from treadle.planner.passes.memory.variants import VARIANTS, restrict

SHARE = Fraction(53, 100)
"""8 GB of PyTorch's use of ResNet-50, the budget of MONeT's ablation."""
SECONDS = 20.0
FORMS = {
    "noop": ("noop", SWITCHES),
    "all": ("all", SWITCHES),
    "all, long": ("all", Switches(local="long", literal_products=True)),
}
"""Families of implementations, and the form of the 0-1 program: trimmed, or with runs and unions in full."""


def tables() -> Iterator[Table]:
    """Overheads of five networks with single families of implementations, and sizes of the 0-1 programs."""
    rows = []
    for name in NETWORKS:
        progress(f"memory.ablation: {name}")
        rows.append(ablated(name, problem_of(name)))
    yield Table(
        f"Overhead in % at {float(SHARE)}x of plain PyTorch's peak",
        rows,
        (
            "Over the step that stores everything with the fastest kernels. Variants without conv get the fastest "
            f"convolutions that still fit afterwards; at most {SECONDS:g} s of search each. -: no plan",
        ),
    )
    yield Table("Size of the whole 0-1 program", [sized(name, problem_of(name)) for name in NETWORKS])


def ablated(name: str, problem: MemoryProblem) -> Row:
    """One network under every variant, and with the choice of operators only."""
    whole = simulate(problem, lower(problem, store_all(problem)))
    budgeted = with_budget(problem, SHARE)
    row: Row = {"network": name}
    for variant, families in VARIANTS.items():
        found = _time(budgeted, families, recompute=True)
        row[variant] = None if found is None else percent(found, whole.time_ns)
    found = _time(budgeted, VARIANTS["all"], recompute=False)
    return row | {"all, no recomputation": None if found is None else percent(found, whole.time_ns)}


def _time(problem: MemoryProblem, families: frozenset[str], recompute: bool) -> int | None:
    options = MemoryOptions(
        families=tuple(sorted(families)), recompute=recompute, time_limit_s=SECONDS, gap=0.005, workers=2
    )
    restricted = prepared(problem, None, options)
    try:
        found = search(restricted, options)
    except (InfeasibleError, LimitError):
        return None
    decisions = plan_of(restricted, found, options).decisions
    if "conv" in families:
        return decisions.objective_ns
    fast = restrict(problem, families | {"conv"}, recompute)
    return simulate(fast, lower(fast, post_optimise(fast, found.schedule))).time_ns


def sized(name: str, problem: MemoryProblem) -> Row:
    """Variables, rows and nonzeros of the program with one implementation of each op, with all, and untrimmed."""
    row: Row = {"network": name}
    for form, (variant, switches) in FORMS.items():
        restricted = restrict(problem, VARIANTS[variant])
        start = time.perf_counter()
        budget = with_budget(restricted, SHARE).budget_bytes
        model = formulate(replace(restricted, budget_bytes=budget), switches=switches).model
        row |= {
            f"{form} variables": len(model.lower),
            f"{form} rows": len(model.row_lower),
            f"{form} nonzeros": len(model.row_vars),
            f"{form} build s": time.perf_counter() - start,
        }
    return row
