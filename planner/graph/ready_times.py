"""When the gradients of a step become ready, if its operators run one after the other."""

from __future__ import annotations

from typing import NamedTuple

from treadle.planner.documents.trace import Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.gradients import ready
from treadle.planner.graph.index import Graph, require_operators


class ReadyTimes(NamedTuple):
    """When gradients become ready: parameter, gradient and ns from the begin of the step, in this order."""

    gradients: tuple[tuple[Tensor, Tensor, int], ...]
    compute_ns: int
    """Time of the forward and backward pass."""
    optimizer_ns: int


def ready_times(trace: Trace) -> ReadyTimes:
    """The times of a step whose operators run one after the other. Raises InputError for an operator without time."""
    require_operators(trace)
    graph, ends, now, optimizer = Graph(trace), dict[str, int](), 0, 0
    for place, op in enumerate(trace.ops):
        if op.intermediate_of is not None:
            continue
        if op.phase == "optimizer":
            optimizer += op.time_ns or 0
            continue
        if op.time_ns is None and not graph.is_view(op):
            text = f"op {op.id!r} has no time; capture with `--hardware` or `--measure`"
            raise InputError(text, where=trace.name, path=f"$.ops[{place}].time_ns")
        now += op.time_ns or 0
        ends.update((tensor, now) for tensor in op.outputs if tensor is not None)
    found, latest = list[tuple[Tensor, Tensor, int]](), 0
    for parameter, gradient in ready(trace):
        latest = max(latest, ends.get(gradient.id, 0))
        found.append((parameter, gradient, latest))
    return ReadyTimes(tuple(found), now, optimizer)
