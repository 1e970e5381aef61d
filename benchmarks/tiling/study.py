"""Random programs and ALS on the published graph: greedy, sweeps, exact and enumeration, costs and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from time import perf_counter
from typing import NamedTuple, TypeVar

from benchmarks.common import Row, Table, progress
from benchmarks.tiling.programs import als, random_program
from treadle.planner.passes.tiling.contract import contract
from treadle.planner.passes.tiling.exact import exactly
from treadle.planner.passes.tiling.exhaustive import enumerated
from treadle.planner.passes.tiling.graph import TilingGraph, cost_of
from treadle.planner.passes.tiling.greedy import greedy
from treadle.planner.passes.tiling.problem import CostModel, TilingProblem
from treadle.planner.passes.tiling.published import published_graph
from treadle.planner.passes.tiling.published_search import along, local_search

T = TypeVar("T")
PROGRAMS = 100
WORKERS = 64
OPERATORS = (2, 15)
POOLS = {"2 to 4 sources": (2, 4, False), "4 to 8 sources": (4, 8, False), "2 to 4 sources, shared": (2, 4, True)}
MOST_CHOICES = 3**17
"""Choices up to which all are enumerated."""
GROWTH = (4, 8, 12, 15, 30, 60, 120, 250)
GIGABYTE = 10**9
MODELS: tuple[CostModel, ...] = ("seed", "exact")
NOTE = "misses: programs in which it costs more than the least; misses 0: those of them whose least is 0"


class Compared(NamedTuple):
    """Costs in elements and times in seconds by method, on one graph; enumeration only where it was run."""

    operators: int
    choices: int
    costs: dict[str, int]
    times: dict[str, float]


def tables() -> Iterator[Table]:
    """How often and how far greedy and sweeps miss the least cost, and times, on random programs and ALS."""
    rows = []
    for pool in POOLS:
        for model in MODELS:
            progress(f"random programs, {pool}, model {model}")
            rows.append(_missed(pool, model))
    yield Table(
        f"{PROGRAMS} random programs of each kind, {WORKERS} workers",
        rows,
        (NOTE, "at most: cost over the least, of the others"),
    )
    progress("enumeration")
    yield Table("Longer shared programs, model seed, 4 workers", list(_growth()))
    progress("ALS")
    yield Table("ALS, 14 operators with sources and views, model seed, 64 workers", list(_als()))


def programs(pool: str, model: CostModel, count: int = PROGRAMS) -> Iterator[TilingProblem]:
    """The programs of the study: seeds 0, 1, ..."""
    least, most, shared = POOLS[pool]
    for seed in range(count):
        random = Random(seed)
        program = random_program(random, random.randint(*OPERATORS), random.randint(least, most), shared=shared)
        yield program.problem(f"program {seed}", WORKERS, model)


def compared(problem: TilingProblem, *, enumerate_up_to: int = 0) -> Compared:
    """All methods on one problem; the time of building the graph is not counted."""
    made = published_graph(problem)
    times: dict[str, float] = {}
    first = _timed(times, "greedy", lambda: greedy(made.graph, made.second))
    small = contract(made.graph, made.capacities)
    local = _timed(times, "sweep", lambda: local_search(made.graph, small, first.choice))
    exact = _timed(times, "exact", lambda: exactly(made.graph, made.capacities, known=small.expanded(local)))
    choices = 1
    for group in small.graph.groups:
        choices *= len(group.labels)
    costs = {"greedy": _cost(made.graph, first.choice), "sweep": _cost(made.graph, small.expanded(local))}
    costs["exact"] = _cost(made.graph, exact.choice or ())
    if choices <= enumerate_up_to:
        best = _timed(times, "enumeration", lambda: enumerated(made.graph, made.capacities))
        costs["enumeration"] = best.cost if best else -1
    assert exact.bound == costs["exact"], "the exact search did not end"
    operators = sum(node.operator not in ("newarray", "swapaxis") for node in problem.nodes)
    return Compared(operators, choices, costs, times)


def _timed(times: dict[str, float], name: str, work: Callable[[], T]) -> T:
    began = perf_counter()
    found = work()
    times[name] = perf_counter() - began
    return found


def _cost(graph: TilingGraph, choice: tuple[int, ...]) -> int:
    cost = cost_of(graph, choice)
    assert cost is not None
    return cost


def _missed(pool: str, model: CostModel) -> Row:
    found = [compared(problem) for problem in programs(pool, model)]
    row: Row = {"pool": pool, "model": model, "operators": sum(each.operators for each in found) / len(found)}
    for name in ("greedy", "sweep"):
        missed = [each for each in found if each.costs[name] > each.costs["exact"]]
        row[f"{name} misses"] = len(missed)
        row[f"{name} misses 0"] = sum(not each.costs["exact"] for each in missed)
        ratios = [each.costs[name] / each.costs["exact"] for each in missed if each.costs["exact"]]
        row[f"{name} at most"] = max(ratios, default=1.0)
    for name in ("greedy", "sweep", "exact"):
        row[f"{name}, ms"] = 1e3 * sum(each.times[name] for each in found) / len(found)
    row["slowest exact, ms"] = 1e3 * max(each.times["exact"] for each in found)
    return row


def _growth() -> Iterator[Row]:
    for operators in GROWTH:
        random = Random(operators)
        problem = random_program(random, operators, 3, shared=True).problem("shared", 4, "seed")
        each = compared(problem, enumerate_up_to=MOST_CHOICES)
        ratios = {f"{name} over least": each.costs[name] / each.costs["exact"] for name in ("greedy", "sweep")}
        yield {"operators": each.operators, "choices": f"{each.choices:.1e}", **ratios, **_columns(each.times, "s")}


def _columns(figures: dict[str, float], unit: str) -> Row:
    return {f"{name}, {unit}": figure for name, figure in figures.items()}


def _als() -> Iterator[Row]:
    users, items = 10_000_000, 100_000
    program = als(users, items, 20, 2)
    for copies in (0, 8 * users * items):
        problem = program.problem("als", WORKERS, "seed", dup_bytes=copies)
        each = compared(problem, enumerate_up_to=MOST_CHOICES)
        made = published_graph(problem)
        small = contract(made.graph, made.capacities)
        row: Row = {"second copies": "yes" if copies else "no", "operators": each.operators, "choices": each.choices}
        for name, label in (("rows", "S0"), ("columns", "S1")):
            row[f"{name}, GB"] = 8 * _cost(made.graph, small.expanded(along(made.graph, small, label))) / GIGABYTE
        costs = {name: 8 * cost / GIGABYTE for name, cost in each.costs.items()}
        yield row | _columns(costs, "GB") | _columns(each.times, "s")
