"""Swap plans of real traces, without a search: the order of the trace and the smallest pool times `share`."""

from __future__ import annotations

from msgspec.structs import replace

from tests.planner.passes.swap.plans import decide
from treadle.planner.documents.plan import VERSION, Certificate, Plan, Prediction, Provenance
from treadle.planner.documents.trace import Implementation, Op, Trace
from treadle.planner.passes.swap.arrays import arrays_of
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.layout import Pool, least_pool, pool_bytes
from treadle.planner.passes.swap.planning import inplace_problem
from treadle.planner.passes.swap.problem import SwapMachine


def timed(trace: Trace) -> Trace:
    """Every op takes a microsecond and a ns for ten bytes that it makes."""
    sizes = {tensor.id: tensor.bytes or 0 for tensor in trace.tensors}

    def time(call: Op | Implementation) -> int:
        return 1000 + sum(sizes[t] for t in call.outputs if t) // 10

    ops = (
        replace(
            op,
            time_ns=time(op),
            implementations=tuple(replace(way, time_ns=time(way)) for way in op.implementations),
        )
        for op in trace.ops
    )
    return replace(trace, ops=tuple(ops))


def swapped(trace: Trace, share: float, bandwidth: int = 10**10) -> SwapDecisions:
    """Plan `trace`, which has times, with its ops in place where they can be."""
    task = inplace_problem(
        trace, SwapMachine(memory_bytes=2**40, in_bandwidth=bandwidth, out_bandwidth=bandwidth, together=(5, 6))
    )
    problem = task.problem
    arrays = arrays_of(problem)
    least = least_pool(arrays)
    pool = Pool(least.classes, tuple(int(count * share) for count in least.counts))
    memory = pool_bytes(arrays.sizes, pool) + problem.scratch_bytes
    small = replace(problem, machine=replace(problem.machine, memory_bytes=memory))
    return replace(decide(small, range(len(problem.ops)), pool), runs=task.runs)


def plan_with(decisions: SwapDecisions) -> Plan:
    """A plan of these decisions that no search made."""
    return Plan(
        version=VERSION,
        inputs={},
        decisions=decisions,
        prediction=Prediction(time_us=decisions.time_ns / 1000, peak_bytes=decisions.peak_bytes),
        certificate=Certificate(
            verdict="accepted",
            checker="hand",
            objective=decisions.time_ns,
            lower_bound=0,
            unit="ns",
            argument="-",
            gap=1.0 if decisions.time_ns else 0.0,
            optimal=not decisions.time_ns,
        ),
        provenance=Provenance(tool="treadle", method="hand"),
    )
