"""The calls of a trace that an instruction of a memory plan executes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from treadle.planner.documents.trace import Implementation, Op
from treadle.planner.errors import InputError
from treadle.planner.graph.index import Graph
from treadle.planner.passes.memory.problem import Backward, Forward, MemoryProblem
from treadle.planner.passes.memory.program import Drop, EnterStage, Instruction, RunBackward, RunForward


def calls_of(
    instruction: Instruction, problem: MemoryProblem, graph: Graph, *, late: bool
) -> list[tuple[Op, Op | Implementation]]:
    """The ops that `instruction` runs, each with the call that makes its results; views are left out.

    `late`: the forward pass has finished, so a forward node is recomputed. Raises InputError where the trace lacks
    the ops or the implementations.
    """
    inplace = False
    match instruction:
        case RunForward(node, way, inplace):
            names = problem.fwd[node].ops
            impl: Forward | Backward = problem.fwd[node].impls[way]
        case RunBackward(node, way):
            names = problem.bwd[node].ops
            impl = problem.bwd[node].impls[way]
        case EnterStage() | Drop():
            return []
        case _:
            assert_never(instruction)
    if not names:
        return []
    again = late and isinstance(instruction, RunForward)
    return [
        (op, chosen(op, impl, inplace=inplace, again=again) if op.id == names[0] else op)
        for op in _ops(names, impl, graph)
    ]


def chosen(op: Op, impl: Forward | Backward, *, inplace: bool = False, again: bool = False) -> Op | Implementation:
    """The call that runs `op`, the first of its node, where a plan runs the node by `impl`. A recomputation with costs
    of its own uses an implementation that reads what the first run left.

    Raises InputError where the op lacks the in-place or recomputing implementation that the plan needs.
    """
    again = again and isinstance(impl, Forward) and impl.recompute_time_ns is not None
    calls = op.implementations
    if inplace:
        fitting = [call for call in calls if call.family == "inplace" and call.overwrites is not None]
        fitting = [call for call in fitting if call.again == again] or [call for call in fitting if not call.again]
    elif again:
        fitting = [call for call in calls if call.again and call.overwrites is None]
    else:
        return next((call for call in calls if call.name == impl.name and not call.again), op)
    if not fitting:
        kind = "in place" if inplace else "by what its first run left"
        raise InputError(f"the plan runs op {op.id!r} {kind}, for which the trace has no implementation")
    return fitting[0]


def _ops(names: Sequence[str], impl: Forward | Backward, graph: Graph) -> list[Op]:
    """The ops of a node without views. Raises InputError where the trace lacks them or the implementation."""
    for name in names:
        if name not in graph.ops:
            raise InputError(f"the plan runs op {name!r}, which the trace lacks", where=graph.trace.name)
    ops = [graph.ops[name] for name in names]
    if impl.name not in ("default", *(way.name for way in ops[0].implementations)):
        raise InputError(
            f"the plan runs op {names[0]!r} by {impl.name!r}, which the trace lacks", where=graph.trace.name
        )
    return [op for op in ops if not graph.is_view(op)]
