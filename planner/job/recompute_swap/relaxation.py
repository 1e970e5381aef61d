"""What swapping and recomputation together cannot beat, and the recompute set that the proof suggests.

The linear program is that of the swap pass (treadle.planner.passes.swap.bound) with one more option for a tensor:
recomputing it. It covers every plan that this package can find: an operator reads what all of its calls read, takes
the time and the workspace of the least of them, and may overwrite the largest input that one of them overwrites;
optional operators are left out. Only operators of the forward pass run again, and nothing random; what a recomputation
reads is live at no cost.
"""

from __future__ import annotations

import threading
from fractions import Fraction

from msgspec.structs import replace

from treadle.planner.documents.trace import Implementation, Op, Trace
from treadle.planner.graph.index import Graph
from treadle.planner.graph.unrolling import draws
from treadle.planner.passes.swap.bound import SECONDS, Repeats, bound_with_repeats
from treadle.planner.passes.swap.extract import problem_from_trace
from treadle.planner.passes.swap.problem import SwapMachine, SwapProblem
from treadle.planner.search.bound import Bound

SHARES = (0.9, 0.5, 0.1)
"""What the linear program recomputes to at least this share becomes a member of a set."""


def joint_bound(
    trace: Trace,
    machine: SwapMachine,
    reserve_bytes: int,
    *,
    time_limit_s: float = SECONDS,
    stop: threading.Event | None = None,
) -> tuple[Bound, list[frozenset[str]]]:
    """A lower bound in ns on every plan in any order that swaps and recomputes, and sets of tensor ids, from certain to
    possible, that the linear program recomputes. `trace` has the implementations that plans may choose; the limits are
    those of `bound_with_repeats`."""
    problem, repeats = relaxed(trace, machine, reserve_bytes)
    bound, shares = bound_with_repeats(problem, repeats, time_limit_s=time_limit_s, stop=stop)
    sets = [frozenset(problem.tensors[t].id for t, share in shares.items() if share >= least) for least in SHARES]
    return bound, [members for members in dict.fromkeys(sets) if members]


def relaxed(trace: Trace, machine: SwapMachine, reserve_bytes: int) -> tuple[SwapProblem, Repeats]:
    """The swap problem in which every operator is the least that it can be, and what can be recomputed."""
    graph = Graph(trace)
    problem = problem_from_trace(
        replace(trace, ops=tuple(_least(op, graph) for op in trace.ops)), machine, reserve_bytes
    )
    maker = {tensor: op for op in problem.ops for tensor in op.outputs}
    again: list[Fraction | None] = []
    for at, tensor in enumerate(problem.tensors):
        made = maker.get(at)
        op = graph.ops[made.id] if made is not None else None
        if made is None or op is None or op.phase != "forward" or op.mutates or op.comm or draws(op, op):
            again.append(None)
            continue
        together = sum(problem.tensors[other].bytes for other in made.outputs)
        quickest = min(call.time_ns or 0 for call in op.variants)
        again.append(Fraction(quickest * tensor.bytes, max(1, together)))
    return problem, Repeats(tuple(again), tuple(_spared(graph.ops[op.id], graph) for op in problem.ops))


def _least(op: Op, graph: Graph) -> Op:
    first = [call for call in op.variants if not (isinstance(call, Implementation) and call.again)]
    sure = frozenset.intersection(*(frozenset(graph.owner[tensor] for tensor in call.inputs) for call in first))
    return replace(
        op,
        inputs=op.inputs if len(first) == 1 else tuple(tensor for tensor in op.inputs if graph.owner[tensor] in sure),
        time_ns=None if op.time_ns is None else min(call.time_ns or 0 for call in first),
        workspace_bytes=min(call.workspace_bytes or 0 for call in first),
    )


def _spared(op: Op, graph: Graph) -> int:
    taken = (call.overwrites for call in op.implementations if call.overwrites is not None)
    return max((graph.storage_bytes(graph.owner[tensor]) for tensor in taken), default=0)
