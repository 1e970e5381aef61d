"""The activations that a swap plan moves out and in, for `torch.compile`: `offload.py`.

A plan's copies of parameters, states and inputs, its order and its pool belong to whoever holds the memory, which under
`torch.compile` is PyTorch. What can be carried is an activation that leaves during the forward pass and comes back for
the backward pass: the plan's times become places in the two compiled graphs, at which the operators of PyTorch's own
activation offloading (`ao::offload`, `ao::reload`, `ao::wait_tensor`) are inserted.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from treadle.codegen.memory.kept_values import operator_name, same_operators
from treadle.codegen.python_text import PythonTree, constants, layout
from treadle.codegen.templates import quote, template
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.trace import Op, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.index import Graph
from treadle.planner.graph.unrolling import as_run, copies_alone
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.timeline_of import start_bytes, tasks_of
from treadle.planner.timeline.simulator import simulate

FILE_NAME = "offload.py"
HALVES = dict.fromkeys(("treadle.conv2d_weight_gradient", "treadle.conv2d_input_gradient"), "convolution_backward")
"""Operators of a trace that are one operator in PyTorch's graph."""


class ActivationOffload(NamedTuple):
    """A tensor that is on the host between forward and backward pass, and the operators between which it travels, all
    by their ids in the trace."""

    tensor: str
    offload: str
    """Forward operator after which its copy is issued."""
    free: str | None
    """Forward operator that may have its memory; None where only the backward pass needs it."""
    reload: str | None
    """Backward operator after which it is brought back; None for before the first."""


class ActivationOffloads(NamedTuple):
    """What of a plan the target carries over. All copies of the plan count, in both directions."""

    moves: tuple[ActivationOffload, ...]
    bytes: int
    """Bytes of all moves, in one direction."""
    planned_copies: int
    planned_bytes: int


def generate(decisions: SwapDecisions, trace: Trace) -> tuple[dict[str, str], ActivationOffloads]:
    """The module as {relative path: text}, and what it carries. Raises InputError for a plan that recomputes, that was
    made for another trace or for a step without a backward pass."""
    carried = carry(decisions, trace)
    graph = Graph(trace)
    calls = {
        phase: [op for op in trace.ops if op.phase == phase and op.intermediate_of is None]
        for phase in ("forward", "backward")
    }
    number = {op.id: str(at) for phase in calls.values() for at, op in enumerate(phase)} | {None: "None"}
    moves = (
        PythonTree(
            "(", (*_result(graph, move.tensor, number), *(number[op] for op in (move.offload, move.free, move.reload)))
        )
        for move in carried.moves
    )
    text = template("torch/offload.py.j2").render(
        name=trace.name,
        memory=format_bytes(decisions.problem.machine.memory_bytes),
        moves=len(carried.moves),
        bytes=format_bytes(carried.bytes),
        planned=carried.planned_copies,
        planned_bytes=format_bytes(carried.planned_bytes),
        forward=list(constants(FORWARD=_names(calls["forward"]))),
        backward=list(constants(BACKWARD=_names(calls["backward"]))),
        table=list(layout("MOVES = ", PythonTree("[", tuple(moves), "]"), 0)),
        same=same_operators(),
    )
    return {FILE_NAME: text}, carried


def carry(decisions: SwapDecisions, trace: Trace) -> ActivationOffloads:
    """Which of the plan's copies PyTorch can make, and where: those of a tensor that the forward pass makes, that the
    step does not return, that leaves while forward operators run and comes back for a backward one. A copy may be
    issued once the operator before it has ended, its memory goes to the first operator that starts after it.

    Raises InputError as `generate`.
    """
    problem = decisions.problem
    graph = Graph(trace)
    if not copies_alone(decisions.runs):
        raise InputError(
            "found a plan that computes operators again, expected one of copies alone; plan without --with-recompute",
            where=trace.name,
            path="$.decisions.runs",
        )
    for at, op in enumerate(problem.ops):
        if op.id not in graph.ops:
            raise InputError(
                f"found operator {op.id!r}, which the trace {trace.name!r} does not have; it is not the plan's trace",
                where="plan",
                path=f"$.decisions.problem.ops[{at}]",
            )
    phase = [graph.ops[problem.ops[op].id].phase for op in decisions.order]
    if "forward" not in phase or "backward" not in phase:
        raise InputError("found no forward or no backward operators, expected a training step", where=trace.name)
    tasks, resources = tasks_of(decisions)
    schedule = simulate(tasks, resources, start_bytes(decisions))
    ran = [at for at, node in enumerate(decisions.nodes) if node.kind == "compute"]
    ran.sort(key=lambda at: (schedule.start[at], schedule.end[at], at))
    names = [problem.ops[decisions.nodes[at].item].id for at in ran]
    starts, ends = [schedule.start[at] for at in ran], [schedule.end[at] for at in ran]
    planned = Graph(as_run(trace, decisions.runs))
    returned = {planned.owner[tensor] for tensor in trace.outputs}
    held = _held(planned)
    copies = [node for node in decisions.nodes if node.kind in ("in", "out")]
    trips: defaultdict[int, list[int]] = defaultdict(list)
    for at, node in enumerate(decisions.nodes):
        if node.kind != "compute":
            trips[node.item].append(at)

    def of(name: str) -> str:
        return graph.ops[name].phase

    moves = []
    for tensor, places in sorted(trips.items()):
        storage = problem.tensors[tensor].id
        maker = graph.producer.get(storage)
        if maker is None or maker.phase != "forward" or storage in returned:
            continue
        for leave, back in itertools.pairwise(places):
            there, here = decisions.nodes[leave], decisions.nodes[back]
            if there.kind == "in" or here.kind != "in" or phase[here.serves] != "backward":
                continue
            left = names[: bisect.bisect_right(ends, schedule.start[leave])]
            before = left[-1] if left else names[0]
            following = names[bisect.bisect_left(starts, schedule.end[leave]) :][:1]
            ended = names[: bisect.bisect_right(ends, schedule.start[back])]
            name = next((held[storage][op] for op in reversed(left) if op in held[storage]), storage)
            if of(before) == "forward":
                free = following[0] if following and of(following[0]) == "forward" else None
                moves.append(
                    ActivationOffload(
                        name, before, free, next((op for op in reversed(ended) if of(op) == "backward"), None)
                    )
                )
            break
    return ActivationOffloads(
        moves=tuple(moves),
        bytes=sum(graph.storage_bytes(move.tensor) for move in moves),
        planned_copies=len(copies),
        planned_bytes=sum(problem.tensors[node.item].bytes for node in copies),
    )


def _held(planned: Graph) -> dict[str, dict[str, str]]:
    """For each storage the tensors that lie there one after the other, by the operators that make them: each in place
    of the one before."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for op in planned.trace.ops:
        for tensor in op.outputs:
            if tensor is not None and not planned.is_view(op):
                found[planned.owner[tensor]][op.id] = tensor
    return found


def _names(ops: Sequence[Op]) -> list[str]:
    return [HALVES.get(op.target, operator_name(op.target)) for op in ops]


def _result(graph: Graph, tensor: str, number: dict[str | None, str]) -> tuple[str | PythonTree, ...]:
    """A result as other graphs can find it: its call, dtype, shape, and how many results like it the call has before
    it."""
    maker, record = graph.producer[tensor], graph.tensors[tensor]
    like = [
        other
        for other in maker.outputs
        if other is not None
        and (graph.tensors[other].dtype, graph.tensors[other].shape) == (record.dtype, record.shape)
    ]
    shape = PythonTree("[", tuple(map(str, record.shape or ())), "]")
    return number[maker.id], quote(record.dtype or ""), shape, str(like.index(tensor))
