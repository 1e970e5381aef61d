"""The memory pass seen from a swap plan: its problem of a trace, and the runs of its plans."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from treadle.planner.documents.trace import Implementation, Op, OpRun, Trace
from treadle.planner.graph.implementations.normalisation import INVERTING
from treadle.planner.graph.index import Graph
from treadle.planner.graph.unrolling import OWN, call_named, without_useless
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.extract.problem import problem_from_trace
from treadle.planner.passes.memory.problem import FAMILIES, MemoryProblem
from treadle.planner.passes.memory.program import EnterStage
from treadle.planner.passes.memory.trace_calls import calls_of

SAME_BITS = tuple(family for family in FAMILIES if family not in ("conv", "statistics"))
"""Families whose calls make the bits of the model's own; those that invert a normalisation are left out anyway."""


def allowed(trace: Trace, families: Collection[str] | None = None, limit: int | None = None) -> Trace:
    """`trace` with those other implementations only that a swap plan may choose: of `families` (None for all), with at
    most `limit` bytes of workspace, and none that inverts a normalisation, which is right only while a runtime watches
    the scales. The op's own call always stays."""

    def fits(variant: Implementation) -> bool:
        own = set(filter(None, variant.family.split("+")))
        small = limit is None or (variant.workspace_bytes or 0) <= limit
        return small and variant.target not in INVERTING and (families is None or own <= set(families))

    return replace(
        trace,
        ops=tuple(
            replace(op, implementations=tuple(filter(fits, op.implementations))) if op.implementations else op
            for op in trace.ops
        ),
    )


def rounded_otherwise(trace: Trace, runs: Sequence[OpRun]) -> tuple[str, ...]:
    """Ids of ops that `runs` make by a call whose results may differ from the model's own in the last bits."""
    graph = Graph(trace)
    found: dict[str, None] = {}
    for run in runs:
        call = call_named(graph.ops[run.op], run.implementation, trace.name)
        if isinstance(call, Implementation) and not set(filter(None, call.family.split("+"))) <= set(SAME_BITS):
            found[run.op] = None
    return tuple(found)


def model_part(trace: Trace) -> Trace:
    """`trace` without the optimizer's updates, of which the memory pass knows nothing; their state stays."""
    return replace(trace, ops=tuple(op for op in trace.ops if op.phase != "optimizer"))


def most_workspace(trace: Trace) -> int:
    """The largest workspace of any op by its own call or by another, in bytes."""
    return max((call.workspace_bytes or 0 for op in trace.ops for call in op.variants), default=0)


def memory_problem(trace: Trace) -> MemoryProblem:
    """The memory pass's problem of `trace` without its updates, in the bytes that a swap plan counts: those of tensors,
    which have all memory but the largest workspace. Nothing random runs again. Its budget is 0.

    Raises InputError for a trace that the memory pass does not cover.
    """
    problem = problem_from_trace(_without_workspace(model_part(trace)), 0)
    random = {op.id for op in trace.ops if op.random}
    once = {i for i, node in enumerate(problem.fwd) if not random.isdisjoint(node.ops)}
    return replace(
        problem,
        fwd=tuple(
            replace(node, recomputable=False) if i in once or node.creator in once else node
            for i, node in enumerate(problem.fwd)
        ),
    )


def _without_workspace(trace: Trace) -> Trace:
    return replace(
        trace,
        ops=tuple(
            replace(
                op,
                workspace_bytes=None,
                implementations=tuple(replace(variant, workspace_bytes=None) for variant in op.implementations),
            )
            for op in trace.ops
        ),
    )


def runs_of(decisions: MemoryDecisions, trace: Trace) -> tuple[OpRun, ...]:
    """The calls of a memory plan in their order, then the updates of `trace`, which the plan knows nothing of.

    Raises InputError where the plan runs ops or implementations that the trace lacks.
    """
    graph = Graph(trace)
    runs: list[OpRun] = []
    late = False
    for instruction in decisions.program:
        if isinstance(instruction, EnterStage):
            late = instruction.k <= len(decisions.problem.bwd)
        for op, call in calls_of(instruction, decisions.problem, graph, late=late):
            runs.append(OpRun(op=op.id, implementation=_name(call)))
    runs += [OpRun(op=op.id) for op in trace.ops if op.phase == "optimizer" and not graph.is_view(op)]
    return without_useless(trace, runs)


def _name(call: Op | Implementation) -> str:
    return call.name if isinstance(call, Implementation) else OWN
