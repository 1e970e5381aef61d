"""From a trace, a hardware profile and measured costs to the compression problem.

The backward pass runs in the order of the trace. A gradient is ready when the operator that makes it has ended; all
else, the optimizer and what runs after the last gradient among it, is the `forward_ns` of the problem.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from treadle.planner.documents.compression_costs import CompressionCosts, CompressorCost, RoutineCost
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.selection import Selection
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.gradients import ready
from treadle.planner.graph.index import Graph, require_operators
from treadle.planner.machine.compressors import ALGORITHMS, compressor
from treadle.planner.machine.gradient_links import inter_link, intra_link
from treadle.planner.machine.planned_allreduce import planned_curve
from treadle.planner.passes.compression.problem import DTYPE_BYTES, VERSION, CompressionProblem, Gradient


def problem_of(
    trace: Trace,
    hardware: Hardware,
    costs: CompressionCosts,
    compressors: Sequence[str],
    *,
    planned: Selection | None = None,
    where: str = "--compressor",
) -> CompressionProblem:
    """The problem of the trace's gradients on all ranks of the profile, with the named compressors as candidates.

    planned: plans of an allreduce by size, which may send a dense group. where: what errors call the names. Raises
    InputError for a trace without gradients or times, gradients other than float32, unequal nodes, compressors without
    costs, and plans for other ranks.
    """
    forward_ns, gradients = gradients_of(trace)
    problem = CompressionProblem(
        version=VERSION,
        name=trace.name,
        machines=hardware.nodes,
        devices=hardware.devices_per_node,
        forward_ns=forward_ns,
        gradients=gradients,
        intra=intra_link(hardware) if hardware.devices_per_node > 1 else None,
        inter=inter_link(hardware) if hardware.nodes > 1 else None,
        compressors=_chosen(costs, compressors, where),
        routines=_fitting(costs.routines, hardware),
        issue=costs.issue,
        planned=None if planned is None else planned_curve(planned, hardware),
        pack=costs.pack,
    )
    for path, found, expected in problem.problems():
        raise InputError(f"as a compression problem: found {found}, expected {expected}", where=trace.name, path=path)
    return problem


def at_once(problem: CompressionProblem) -> CompressionProblem:
    """The problem where gradients are exchanged after the backward pass: all of them are ready when it has ended."""
    ready = tuple(replace(gradient, backward_ns=0) for gradient in problem.gradients)
    return replace(problem, gradients=ready, forward_ns=problem.forward_ns + problem.backward_ns)


def gradients_of(trace: Trace) -> tuple[int, tuple[Gradient, ...]]:
    """ns of all but the backward pass, and the gradients in the order in which they become ready. Raises InputError as
    `problem_of`."""
    require_operators(trace)
    graph = Graph(trace)
    pairs = ready(trace)
    if not pairs:
        raise InputError("found no gradients of parameters, expected a trace of a training step", where=trace.name)
    ends: dict[str, int] = {}
    before = backward = 0
    for place, op in enumerate(trace.ops):
        if op.intermediate_of is not None:
            continue
        if op.time_ns is None and not graph.is_view(op):
            text = f"op {op.id!r} has no time; capture with `--hardware` or `--measure`"
            raise InputError(text, where=trace.name, path=f"$.ops[{place}].time_ns")
        if op.phase == "backward":
            backward += op.time_ns or 0
        else:
            before += op.time_ns or 0
        ends.update((tensor, backward) for tensor in op.outputs if tensor is not None)
    found, now = [], 0
    for parameter, gradient in pairs:
        if gradient.dtype != "float32" or gradient.bytes is None:
            name = parameter.name or parameter.id
            what = f"a gradient of {name} in {gradient.dtype or 'no dtype'}"
            raise InputError(f"found {what}, expected float32, which compressors encode", where=trace.name)
        then = max(now, ends.get(gradient.id, now))
        if elements := gradient.bytes // DTYPE_BYTES:
            found.append(Gradient(name=parameter.name or parameter.id, elements=elements, backward_ns=then - now))
            now = then
    return before + backward - now, tuple(found)


def _chosen(costs: CompressionCosts, names: Sequence[str], where: str) -> tuple[CompressorCost, ...]:
    """The costs of the named compressors. Raises InputError for one that was not measured."""
    known = [_canonical(cost.name) for cost in costs.compressors]
    wanted = dict.fromkeys(map(_canonical, names))
    for name in wanted:
        if name not in known:
            listed = ", ".join(dict.fromkeys(known)) or "none"
            text = f"found {name}, expected one with costs in {costs.name}: {listed}"
            if name.partition(":")[0] in ALGORITHMS:
                text += f"; `treadle profile measure --compression {name}` measures it"
            raise InputError(text, where=where)
    return tuple(cost for cost, name in zip(costs.compressors, known, strict=True) if name in wanted)


def _canonical(name: str) -> str:
    """`dgc` as `dgc:0.01`; a name that is not treadle's as it is. Raises InputError for a parameter out of range."""
    return compressor(name).name if name.partition(":")[0] in ALGORITHMS else name


def _fitting(routines: Sequence[RoutineCost], hardware: Hardware) -> tuple[RoutineCost, ...]:
    """Measured collectives of as many ranks as the profile has."""
    ranks = {"flat": hardware.nodes * hardware.devices_per_node, "intra": hardware.devices_per_node}
    ranks["inter"] = hardware.nodes
    return tuple(cost for cost in routines if cost.ranks == ranks[cost.scope])
