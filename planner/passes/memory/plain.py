"""What the step takes in plain PyTorch, with which people compare a plan: everything kept, the model's own calls.

The peak is that of a run on fake tensors, which the trace has (`treadle.capture.plain`): autograd's own saved tensors.
It counts no workspace inside kernels. The own calls (implementations named default) out of place, with their workspace
and without autograd's habits, are the other figure, and the larger one holds. The time is the sum of the own calls'.
"""

from __future__ import annotations

from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, prune, store_all
from treadle.planner.passes.memory.problem import RESERVE, Backward, BackwardNode, Forward, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.passes.memory.simulate import simulate

OWN = "default"
"""The name of an op's own call among its implementations."""


def plain_peak(problem: MemoryProblem) -> int | None:
    """Peak in bytes, with what the problem holds in reserve. None where some op has no own call."""
    calls = _own_calls(problem)
    modelled = None if calls is None else simulate(problem, lower(problem, calls)).peak_bytes
    if problem.plain_peak_bytes is None:
        return modelled
    return max(problem.plain_peak_bytes + problem.base.get(RESERVE, 0), modelled or 0)


def whole_peak(problem: MemoryProblem) -> int:
    """What shares are of: plain PyTorch's peak in bytes, or that of store-all where some op has no own call."""
    plain = plain_peak(problem)
    return simulate(problem, lower(problem, store_all(problem))).peak_bytes if plain is None else plain


def plain_time(problem: MemoryProblem) -> int | None:
    """Nanoseconds. None where some op has no own call."""
    ways: list[Forward | Backward | None] = [_own(node) for node in problem.fwd if node.kind == "op"]
    ways += [_own(node) for node in problem.bwd]
    times = [way.time_ns for way in ways if way is not None]
    return sum(times) if len(times) == len(ways) else None


def _own(node: ForwardNode | BackwardNode) -> Forward | Backward | None:
    ways: tuple[Forward | Backward, ...] = node.impls
    return next((way for way in ways if way.name == OWN), None)


def _own_calls(problem: MemoryProblem) -> RecomputeSchedule | None:
    """Every op once by its own call, out of place; what the backward pass reads is kept."""
    forward = [next((w for w, impl in enumerate(node.impls) if impl.name == OWN), None) for node in problem.fwd]
    backward = [next((w for w, impl in enumerate(node.impls) if impl.name == OWN), None) for node in problem.bwd]
    ways = tuple(way for way in backward if way is not None)
    if len(ways) < len(backward):
        return None
    read = {i for node, way in zip(problem.bwd, ways, strict=True) for i in node.impls[way].needs}
    made = [i for i, node in enumerate(problem.fwd) if node.kind == "op" or i in read]
    runs = tuple(RunForward(i, way) for i in made if (way := forward[i]) is not None)
    if len(runs) < len(made):
        return None
    later = len(problem.bwd)
    whole = prune(problem, RecomputeSchedule((runs, *[()] * later), (frozenset(made),) * (later + 1), ways))
    return RecomputeSchedule((runs, *[()] * later), whole.kept, ways)
