"""Problems of choosing an index with figures that a person can follow."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from treadle.planner.documents.plan import Plan
from treadle.planner.passes.index.configurations import IndexConfiguration, grid
from treadle.planner.passes.index.decided import decided
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.planning import plan_index
from treadle.planner.passes.index.problem import (
    VERSION,
    DrawnWorkload,
    IndexCandidate,
    IndexMeasurement,
    IndexProblem,
)

DRAW = DrawnWorkload(family="books", bulk=100, operations=40, insert_share=0.5, seed=7)
PREDICTED = (12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1)
MEASURED = (5, 6, 4, 9, 3, 2, 8, 1, 7, 5.5, 20, 30)
"""Throughputs of twelve configurations: those predicted to be best are not those that are measured to be."""


def measurement(time_ns: int, size: int = 2400, windows: int = 4, load_ns: int = 500) -> IndexMeasurement:
    """A run of `time_ns` in windows of which the last has what is left over."""
    each = time_ns // windows
    parts = (*(each,) * (windows - 1), time_ns - each * (windows - 1))
    return IndexMeasurement(load_ns=load_ns, windows_ns=parts, bytes=size)


def problem_of(
    predicted: Sequence[float],
    times: Sequence[int] = (),
    *,
    sizes: Sequence[int] = (),
    top: int | None = None,
    failing: Sequence[int] = (),
    configurations: Sequence[IndexConfiguration] = grid(),
    **fields: Any,
) -> IndexProblem:
    """Predicted ns, and measured ns and bytes, of the configurations in their order; the `top` best predicted ones that
    are not among the `failing` are measured, by default all that have a time."""
    top = len(times) if top is None else top
    order = sorted(range(len(predicted)), key=lambda place: predicted[place])
    measured = [place for place in order if place not in failing][:top]
    tried = order[: order.index(measured[-1]) + 1 if len(measured) == top and measured else top and len(order)]
    candidates = tuple(
        IndexCandidate(
            configuration=configurations[place],
            predicted_ns=float(ns),
            measured=measurement(times[place], sizes[place] if sizes else 2400) if place in measured else None,
            failed="no memory" if place in tried and place in failing else None,
        )
        for place, ns in enumerate(predicted)
    )
    shared: dict[str, Any] = {
        "version": VERSION,
        "name": "small",
        "workload": DRAW,
        "bulk": 100,
        "lookups": 20,
        "inserts": 20,
        "whole": 40,
        "keys_at_end": 120,
        "machine": "a-machine",
        "model": "evaluator",
        "candidates": candidates,
        "top": top,
        "loop_ns": 7 if top else 0,
    }
    return IndexProblem(**{**shared, **fields})


def twelve(top: int, **fields: Any) -> IndexProblem:
    """The twelve configurations: operations that run at a throughput t take 10 ms / t."""
    predicted, times = ([round(10_000_000 / each) for each in row] for row in (PREDICTED, MEASURED))
    return problem_of(predicted, times, top=top, **fields)


PROBLEM = problem_of(
    (900, 400, 300, 800, 100, 200),
    (0, 350, 420, 0, 360, 310),
    sizes=(0, 2500, 2300, 0, 2400, 4000),
    top=4,
    max_memory_ratio=1.5,
)
"""Six configurations of which four were measured; the fastest of those takes too much memory."""


@cache
def small_plan() -> Plan[IndexDecisions]:
    return plan_index(PROBLEM)


@cache
def unmeasured() -> Plan[IndexDecisions]:
    return plan_index(problem_of((900.5, 400.25, 300.75)))


def by_hand() -> IndexDecisions:
    return decided(PROBLEM)


def random_problem(rng: random.Random) -> IndexProblem:
    """A sound problem, with ties, with configurations that do not run, and with a memory ratio that some keep."""
    count = rng.randint(1, 14)
    configurations = rng.sample(grid(), count)
    predicted = [rng.choice((0.25, 1.5)) * rng.randint(1, 12) for _ in range(count)]
    times, sizes = [rng.randint(4, 12) for _ in range(count)], [rng.randint(1900, 1940) for _ in range(count)]
    top, failing = rng.randint(0, count + 2), rng.sample(range(count), rng.randint(0, count // 2))
    problem = problem_of(
        predicted, times, sizes=sizes, top=top, failing=failing, configurations=configurations, loop_ns=0
    )
    if not top:
        return problem
    measured = [each.measured.bytes for each in problem.candidates if each.measured is not None]
    ratio = rng.choice((None, (min(measured) + rng.randint(1, 40)) / (16 * problem.keys_at_end)))
    return problem_of(
        predicted, times, sizes=sizes, top=top, failing=failing, configurations=configurations,
        loop_ns=rng.randint(0, 12), max_memory_ratio=ratio,
    )  # fmt: skip
