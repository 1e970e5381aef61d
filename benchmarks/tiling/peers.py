"""Tilings of models by the search of large graphs, next to the integer program of AutoParallel by CBC and HiGHS.

AutoParallel (meta-pytorch/autoparallel, its `optimize_sharding.py`) chooses placements with a 0-1 variable for each
pair of choices of a producer and a consumer: those of one edge add up to 1, and edges of one operator agree on its
choice. PyPI has no package of it, so its program is written again, on the same graph and costs; CBC is its solver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common import Row, Table, progress
from examples.models import dlrm, gpt2, lstm_lm, moe, resnet50
from treadle.capture.costs import with_roofline
from treadle.capture.graph import capture
from treadle.passes.tiling.extract import ModelTiling, problem_of_trace
from treadle.planner.passes.tiling.ascent import first_choice
from treadle.planner.passes.tiling.extract import mesh_axes
from treadle.planner.passes.tiling.graph import FORBIDDEN, TilingGraph
from treadle.planner.passes.tiling.large import free_best
from treadle.planner.passes.tiling.large import tables as tables_of
from treadle.planner.passes.tiling.problem import TilingProblem
from treadle.planner.passes.tiling.ruled import ruled_graph
from treadle.planner.search.clock import never
from treadle.probe.resolve import load_hardware

MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "DLRM, 2x4": (dlrm.tiny_dense, (2, 4)),
    "MoE, 2x4": (moe.tiny, (2, 4)),
    "LSTM, 2x4": (lstm_lm.tiny, (2, 4)),
    "GPT-2 tiny, 2x2": (gpt2.tiny, (2, 2)),
    "ResNet-50, 8": (resnet50.resnet50, (8,)),
    "GPT-2 small, 2x4": (gpt2.small, (2, 4)),
    "GPT-2 XL, 2x4": (gpt2.xl, (2, 4)),
}
HARDWARE = "ndv4"
LIMIT_S = 60
"""Wall clock of each solver of the integer program."""
MOST_PAIRS = 1_200_000
"""Pairs up to which the integer program is tried."""
SOLVERS = ("CBC", "HIGHS")


def tables() -> Iterator[Table]:
    """Time to the best tilings of models, and what they cost, next to AutoParallel's integer program."""
    rows = []
    for title, (make, mesh) in MODELS.items():
        progress(f"tiling.peers: {title}")
        rows.append(compared(title, problem_of(title, make, mesh)))
    notes = (
        "optimal: proved; costs in us of a step, from the roofline of the profile; times in s",
        f"CBC, HIGHS: AutoParallel's integer program, {LIMIT_S} s at most; - where it has too many pairs to try",
    )
    yield Table(f"Models on {HARDWARE}: tilings, and the time to find them", rows, notes)


def problem_of(title: str, make: Callable[[], Any], mesh: tuple[int, ...]) -> TilingProblem:
    hardware = load_hardware(HARDWARE)
    trace = with_roofline(capture(make, title, "train"), hardware)
    call_ns = round(hardware.devices[0].launch_us * 1e3)
    return problem_of_trace(trace, ModelTiling(mesh_axes(mesh, hardware), call_ns=call_ns)).problem


def compared(title: str, problem: TilingProblem) -> Row:
    began = perf_counter()
    graph = ruled_graph(problem).graph
    found = free_best(graph, first_choice(*tables_of(graph))[0], never)
    row: Row = {
        "model": title,
        "nodes": len(problem.nodes),
        "pairs": sum(edge.costs.size for edge in graph.edges),
        "us": found.cost / 1000,
        "bound": found.bound / 1000,
        "s": perf_counter() - began,
    }
    for solver in SOLVERS if row["pairs"] <= MOST_PAIRS else ():
        began = perf_counter()
        cost = autoparallel(graph, solver)
        row |= {f"{solver} us": None if cost is None else cost / 1000, f"{solver} s": perf_counter() - began}
    return row


def autoparallel(graph: TilingGraph, name: str, limit_s: float = LIMIT_S) -> int | None:
    """The least cost that the integer program finds in time, None for none."""
    from ortools.linear_solver import pywraplp

    kind = {"CBC": "CBC_MIXED_INTEGER_PROGRAMMING", "HIGHS": "HIGHS_MIXED_INTEGER_PROGRAMMING"}[name]
    solver = pywraplp.Solver.CreateSolver(kind)
    objective = solver.Objective()
    chosen: dict[int, list[Any]] = {}

    def choice(group: int) -> list[Any]:
        """Variables of its labels, which all of its edges share."""
        if group not in chosen:
            chosen[group] = [solver.BoolVar("") for _ in graph.groups[group].labels]
            solver.Add(solver.Sum(chosen[group]) == 1)
            for label, cost in zip(chosen[group], graph.groups[group].own.tolist(), strict=True):
                objective.SetCoefficient(label, cost)
        return chosen[group]

    for edge in graph.edges:
        rows, columns = choice(edge.one), choice(edge.other)
        pairs = {(int(t), int(u)): solver.BoolVar("") for t, u in np.argwhere(edge.costs < FORBIDDEN)}
        for (t, u), pair in pairs.items():
            objective.SetCoefficient(pair, int(edge.costs[t, u]))
        for t, row in enumerate(rows):
            solver.Add(solver.Sum([pair for (one, _), pair in pairs.items() if one == t]) == row)
        for u, column in enumerate(columns):
            solver.Add(solver.Sum([pair for (_, other), pair in pairs.items() if other == u]) == column)
    objective.SetMinimization()
    solver.SetTimeLimit(round(limit_s * 1000))
    status = solver.Solve()
    return round(objective.Value()) if status in (solver.OPTIMAL, solver.FEASIBLE) else None
