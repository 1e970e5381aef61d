"""Time and peak of the step in plain PyTorch, with which plans are compared: the model's own calls, everything kept.

The peak is the larger of two figures: that of a run on fake tensors, which the trace records
(`treadle.capture.plain`), with autograd's saved tensors and without workspace inside kernels; and that of the own calls
(implementations named default), out of place and with their workspace. The time is the sum of the own calls.
"""

from __future__ import annotations

from treadle.planner.passes.memory.lower import RecomputeSchedule, prune, store_all
from treadle.planner.passes.memory.problem import RESERVE, BackwardNode, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.passes.memory.simulate import simulated

OWN = "default"
"""The name of an op's own call among its implementations."""


def plain_peak(problem: MemoryProblem) -> int | None:
    """Peak in bytes, with what the problem holds in reserve. None where some op has no own call."""
    calls = _own_calls(problem)
    modelled = None if calls is None else simulated(problem, calls).peak_bytes
    if problem.plain_peak_bytes is None:
        return modelled
    return max(problem.plain_peak_bytes + problem.base.get(RESERVE, 0), modelled or 0)


def whole_peak(problem: MemoryProblem) -> int:
    """The peak that budgets given as shares refer to: plain PyTorch's in bytes, or that of store-all where some op has
    no own call."""
    plain = plain_peak(problem)
    return simulated(problem, store_all(problem)).peak_bytes if plain is None else plain


def plain_time(problem: MemoryProblem) -> int | None:
    """Nanoseconds. None where some op has no own call."""
    forward = [node for node in problem.fwd if node.kind == "op"]
    nodes: list[ForwardNode | BackwardNode] = [*forward, *problem.bwd]
    own = [_own(node) for node in nodes]
    times = [node.impls[at].time_ns for node, at in zip(nodes, own, strict=True) if at is not None]
    return sum(times) if len(times) == len(nodes) else None


def _own(node: ForwardNode | BackwardNode) -> int | None:
    names = [impl.name for impl in node.impls]
    return names.index(OWN) if OWN in names else None


def _own_calls(problem: MemoryProblem) -> RecomputeSchedule | None:
    """Every op once by its own call, out of place; what the backward pass reads is kept."""
    forward = [_own(node) for node in problem.fwd]
    backward = [_own(node) for node in problem.bwd]
    choices = tuple(way for way in backward if way is not None)
    if len(choices) < len(backward):
        return None
    read = {i for node, way in zip(problem.bwd, choices, strict=True) for i in node.impls[way].needs}
    made = [i for i, node in enumerate(problem.fwd) if node.kind == "op" or i in read]
    runs = tuple(RunForward(i, way) for i in made if (way := forward[i]) is not None)
    if len(runs) < len(made):
        return None
    later = len(problem.bwd)
    whole = prune(problem, RecomputeSchedule((runs, *[()] * later), (frozenset(made),) * (later + 1), choices))
    return RecomputeSchedule((runs, *[()] * later), whole.kept, choices)
