"""How two swap plans differ: the device, what is copied and recomputed, in which order."""

from __future__ import annotations

from treadle.planner.documents.difference import Change, differences, fields_changed, more_and_less
from treadle.planner.passes.swap.decisions import SwapDecisions

FIGURES = ("allocator", "in_bytes", "out_bytes", "idle_ns")


def swap_differences(before: SwapDecisions, after: SwapDecisions) -> list[Change]:
    """The problem first, then copies by the names of tensors, and the order by those of operators."""
    old, new = before.problem, after.problem
    names = [op.id for op in old.ops], [op.id for op in new.ops]
    tensors = {tensor.id: tensor.bytes for tensor in old.tensors}, {tensor.id: tensor.bytes for tensor in new.tensors}
    found = [
        *differences(old.machine, new.machine, "device"),
        *fields_changed(old, new, ("reserve_bytes", "granularity")),
        *more_and_less("operators", *names, "operator"),
        *more_and_less("tensors", *tensors, "tensor"),
    ]
    shared = tensors[0].keys() & tensors[1].keys()
    if resized := sorted(name for name in shared if tensors[0][name] != tensors[1][name]):
        found.append(Change("tensors", f"{len(resized)} of {len(shared)} have other sizes, first {resized[0]}"))
    times = {op.id: op.time_ns for op in old.ops}, {op.id: op.time_ns for op in new.ops}
    if retimed := [name for name in names[0] if name in times[1] and times[0][name] != times[1][name]]:
        found.append(Change("operators", f"{len(retimed)} of {len(names[0])} take other times, first {retimed[0]}"))
    for kind, what in (("out", "copied to the host"), ("in", "copied back"), ("drop", "dropped without a copy")):
        found += more_and_less(what, _moved(before, kind), _moved(after, kind), "tensor")
    found += more_and_less("runs", _runs(before), _runs(after), "run")
    orders = _order(before), _order(after)
    if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
        place = next(place for place, pair in enumerate(zip(*orders, strict=True)) if pair[0] != pair[1])
        found.append(Change("order", f"from operator {place} on: {orders[1][place]} instead of {orders[0][place]}"))
    return [*found, *fields_changed(before, after, FIGURES)]


def _moved(decisions: SwapDecisions, kind: str) -> list[str]:
    return [decisions.problem.tensors[node.item].id for node in decisions.nodes if node.kind == kind]


def _runs(decisions: SwapDecisions) -> list[str]:
    return [
        run.op if run.implementation == "default" else f"{run.op} by {run.implementation}" for run in decisions.runs
    ]


def _order(decisions: SwapDecisions) -> list[str]:
    return [decisions.problem.ops[op].id for op in decisions.order]
