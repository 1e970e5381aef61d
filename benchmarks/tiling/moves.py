"""Programs of arrays under planned and other tilings: bytes moved between workers, counted where they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

import treadle.array as ta
from benchmarks.common import Row, Table, progress
from examples.tiling import (
    als,
    conjugate_gradient,
    jacobi,
    kmeans,
    linear_regression,
    logistic_regression,
    pagerank,
    products,
    ssvd,
)
from treadle.planner.passes.tiling.contract import contract
from treadle.planner.passes.tiling.decided import decided
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.planning import TilingOptions, plan_tiling
from treadle.planner.passes.tiling.problem import MeshAxis, TilingProblem
from treadle.planner.passes.tiling.published import published_graph
from treadle.planner.passes.tiling.published_search import along
from treadle.planner.search.clock import Clock
from treadle.runtime.tiling.workers import run_processes

PROGRAMS: Mapping[str, Callable[[], Any]] = {
    "products": products.program,
    "k-means": kmeans.program,
    "linear regression": linear_regression.program,
    "logistic regression": logistic_regression.program,
    "ALS": als.program,
    "SSVD": ssvd.program,
    "Jacobi": jacobi.program,
    "PageRank": pagerank.program,
    "conjugate gradient": conjugate_gradient.program,
}
WORKERS = 4
METHODS = {"greedy": "greedy", "rows": "row", "columns": "column", "worst": "worst"}
SECONDS = 20.0
EXACT = 1e-9
"""How far results of different tilings may be from each other, relative to the largest value."""


def tables() -> Iterator[Table]:
    """Bytes that the programs of examples/tiling move under planned, greedy, all-row, all-column, blocked tilings."""
    rows = []
    for name, program in PROGRAMS.items():
        progress(f"bytes moved, {name}")
        rows.append(compared(name, problem_of(program)))
    notes = (
        "planned: proved least, except where said; others: times the planned bytes; blocks: Dask's default, whose "
        "chunks are as square as the array allows",
        "counted: in every run the processes received as many bytes from each other as its plan says, and all have the "
        "same results",
    )
    yield Table(f"Bytes moved, {WORKERS} processes, sizes as in examples/tiling", rows, notes)


def problem_of(program: Callable[[], Any], workers: int = WORKERS) -> TilingProblem:
    """The graph of a program on so many workers, for elements that are really moved."""
    return replace(ta.capture(program), mesh=(MeshAxis(name="x0", size=workers),))


def tiled(problem: TilingProblem) -> dict[str, TilingDecisions]:
    """The decisions of each kind of tiling, the planned ones first."""
    found = {"planned": _planned(problem, "auto")}
    found |= {name: _planned(problem, method) for name, method in METHODS.items()}
    return {**found, "blocks": blocks(problem)}


def _planned(problem: TilingProblem, method: Any) -> TilingDecisions:
    return plan_tiling(problem, options=TilingOptions(method=method), clock=Clock.of(SECONDS)).decisions


def blocks(problem: TilingProblem) -> TilingDecisions:
    """All matrices cut along both axes where they can be."""
    made = published_graph(problem)
    small = contract(made.graph, made.capacities)
    return decided(problem, made.tilings(small.expanded(along(made.graph, small, "B"))), method="sweep")


def compared(name: str, problem: TilingProblem) -> Row:
    """Bytes of each tiling, and whether those that processes receive are those that were planned."""
    plans = tiled(problem)
    ran = {kind: run_processes(plan) for kind, plan in plans.items()}
    first = ran["planned"].outputs
    same = all(_near(first[array], outcome.outputs[array]) for outcome in ran.values() for array in first)
    counted = all(sum(ran[kind].received_bytes) == plan.moved_bytes for kind, plan in plans.items())
    least = ran["planned"].bytes
    row: Row = {"program": name, "operators": len(problem.nodes), "planned KB": least / 1e3}
    row |= {f"{kind}, x": ran[kind].bytes / least if least else None for kind in list(plans)[1:]}
    return row | {"counted": "yes" if counted and same else "MISSED"}


def _near(one: Any, other: Any) -> bool:
    return bool(np.allclose(one, other, rtol=EXACT, atol=EXACT * max(1.0, float(np.abs(one).max(initial=0)))))
