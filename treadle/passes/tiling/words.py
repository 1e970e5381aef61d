"""A plan of tilings in words and figures: how arrays are cut, what is moved, what a worker holds."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from math import prod
from typing import Any

from treadle.passes.tiling.what_if import TilingAnswer, TilingQuestion
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.tiling.decisions import TiledEdge, TilingDecisions
from treadle.planner.passes.tiling.problem import TiledArray, TilingProblem

MOST = 20
"""The most arrays and transfers that are listed: the largest."""
ARRAY_HEAD = ("array", "arrays", "shape", "bytes of each", "tiling")
TRANSFER_HEAD = ("transfers", "moves", "bytes", "cost")
_WHOLE = "nothing is cut: transfers would cost more than the work that they save, and each worker can hold all"
_NUMBER = re.compile(r"(?<![A-Za-z0-9_])[0-9]+(?![A-Za-z0-9_])")


def summary(plan: Plan[TilingDecisions]) -> dict[str, Any]:
    """The figures that people ask for first. Costs are elements, or ns for the model `time`."""
    decisions, proof = plan.decisions, plan.certificate
    problem = decisions.problem
    return {
        "name": problem.name,
        "model": problem.model,
        "mesh": [axis.size for axis in problem.mesh],
        "arrays": len(problem.arrays),
        "nodes": len(problem.nodes),
        "method": decisions.method,
        "cost": decisions.cost,
        "moved_bytes": decisions.moved_bytes,
        "moves": len(decisions.edges),
        "memory_bytes": decisions.memory_bytes,
        "memory_limit": problem.memory_bytes,
        "dup_bytes": decisions.dup_bytes,
        "time_ns": decisions.time_ns,
        "lower_bound_ns": int(proof.lower_bound),
        "gap": proof.gap,
        "optimal": proof.optimal,
        "bound_argument": proof.argument,
        "limit_fired": plan.provenance.limit_fired,
        "interrupted": plan.provenance.interrupted,
    }


def lines(plan: Plan[TilingDecisions]) -> list[tuple[str, str]]:
    """Name and text of each line that describes the plan."""
    decisions, proof = plan.decisions, plan.certificate
    problem = decisions.problem
    mesh = "x".join(str(axis.size) for axis in problem.mesh)
    workers = prod(axis.size for axis in problem.mesh)
    verdict = "proved optimal" if proof.optimal else f"gap {proof.gap:.2%}"
    limit = "" if problem.memory_bytes is None else f" of {format_bytes(problem.memory_bytes)}"
    copies = f", {format_bytes(decisions.dup_bytes)} of them second copies" if decisions.dup_bytes else ""
    whole = [("note", _WHOLE)] if all(word == "R" for tiling in decisions.tilings for word in tiling) else []
    cost = "" if problem.model == "time" else f"; {decisions.cost:,} elements by the model {problem.model}"
    return [
        ("problem", f"{many(len(problem.arrays), 'array')} and {many(len(problem.nodes), 'node')} over "
         f"{many(workers, 'worker')}, mesh {mesh}"),
        ("method", plan.provenance.method),
        ("moved", f"{format_bytes(decisions.moved_bytes)} between workers, {many(len(decisions.edges), 'move')}{cost}"),
        ("memory", f"{format_bytes(decisions.memory_bytes)}{limit} on the fullest worker{copies}"),
        ("time", f"{format_time(decisions.time_ns)} {_of_what(problem)}"),
        ("lower bound", f"{format_time(int(proof.lower_bound))}, {verdict}: {proof.argument}"),
        *whole,
    ]  # fmt: skip


def array_rows(plan: Plan[TilingDecisions]) -> list[tuple[object, ...]]:
    """Arrays that the program or step starts from and returns, the largest first, as ARRAY_HEAD: those whose names
    differ in numbers only, and that have one tiling, in one row."""
    problem = plan.decisions.problem
    names = {
        node.outputs[0]: str(node.params.get("name", node.outputs[0])) for node in problem.nodes if not node.inputs
    }
    names |= {name: name for name in problem.outputs if name not in names}
    alike: dict[tuple[str, str, int, str], int] = Counter()
    for array, tiling in zip(problem.arrays, plan.decisions.tilings, strict=True):
        if array.id in names and array.like is None:
            size = prod(array.shape) * array.item_bytes
            alike[_NUMBER.sub("*", names[array.id]), _shape(array), size, ",".join(tiling)] += 1
    rows = sorted(alike.items(), key=lambda row: -row[0][2] * row[1])
    return [(name, count, shape, format_bytes(size), tiling) for (name, shape, size, tiling), count in rows[:MOST]]


def transfer_rows(plan: Plan[TilingDecisions]) -> list[tuple[object, ...]]:
    """What is moved by which steps, the dearest first, as TRANSFER_HEAD."""
    decisions = plan.decisions
    found: dict[str, list[TiledEdge]] = defaultdict(list)
    for edge in decisions.edges:
        if edge.bytes:
            found[_steps(decisions.problem, edge)].append(edge)
    rows = sorted(found.items(), key=lambda row: -sum(edge.cost for edge in row[1]))
    return [
        (words, len(edges), format_bytes(sum(edge.bytes for edge in edges)), _cost(decisions.problem, edges))
        for words, edges in rows[:MOST]
    ]


def answer_head(asked: TilingQuestion) -> tuple[str, ...]:
    """The head of the table of answers."""
    return (asked.name, "moved", "memory", "time", "method")


def answer_row(answer: TilingAnswer) -> tuple[object, ...]:
    """A value and the figures of its plan."""
    each = answer.decisions
    return (
        answer.value, format_bytes(each.moved_bytes), format_bytes(each.memory_bytes), format_time(each.time_ns),
        each.method,
    )  # fmt: skip


def outcome(decisions: TilingDecisions) -> dict[str, Any]:
    """The figures by which plans are compared."""
    return {
        "cost": decisions.cost,
        "moved_bytes": decisions.moved_bytes,
        "memory_bytes": decisions.memory_bytes,
        "time_ns": decisions.time_ns,
        "method": decisions.method,
    }


def _shape(array: TiledArray) -> str:
    return "x".join(map(str, array.shape)) or "scalar"


def _steps(problem: TilingProblem, edge: TiledEdge) -> str:
    return ", ".join(f"{step.transfer} on {problem.mesh[step.axis].name}" for step in edge.steps)


def _cost(problem: TilingProblem, edges: list[TiledEdge]) -> str:
    cost = sum(edge.cost for edge in edges)
    return format_time(cost) if problem.model == "time" else f"{cost:,} elements"


def _of_what(problem: TilingProblem) -> str:
    if problem.model == "time":
        return "of work, calls and transfers, one after the other"
    known = any(axis.costs for axis in problem.mesh)
    return "for the bytes moved" + ("" if known else ", at 1 GB/s from each worker, since no hardware is named")
