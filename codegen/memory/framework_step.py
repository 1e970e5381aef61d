"""What PyTorch itself runs in a step: which nodes, in which of their implementations, and how long values live.

Targets that leave execution to PyTorch predict peak and time with it, as a schedule of the memory problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from treadle.planner.documents.trace import Trace
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower
from treadle.planner.passes.memory.problem import Backward, MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.passes.memory.simulate import Simulation, simulate


def nodes_of(problem: MemoryProblem) -> list[int]:
    """All forward nodes but intermediates that an op of their own makes, which the framework's operators do not."""
    return [i for i, node in enumerate(problem.fwd) if not (node.kind == "intermediate" and node.ops)]


def run_of(problem: MemoryProblem, i: int) -> RunForward:
    """Forward node i as the framework runs it."""
    impls = problem.fwd[i].impls
    return RunForward(i, next((at for at, impl in enumerate(impls) if impl.name == "default"), 0))


def backward_of(problem: MemoryProblem) -> list[Backward]:
    """By backward node: the framework's own implementation, else the first that reads no optional node."""
    there = set(nodes_of(problem))
    chosen = []
    for back in problem.bwd:
        named = [impl for impl in back.impls if impl.name == "default"]
        readable = [impl for impl in back.impls if there.issuperset(impl.needs)]
        chosen.append((named + readable + [back.impls[0]])[0])
    return chosen


def fixed_nodes(problem: MemoryProblem, trace: Trace) -> frozenset[int]:
    """Forward nodes that are never recomputed: random ones without a kept state, and those that write buffers."""
    once = updating(trace)
    return frozenset(i for i, node in enumerate(problem.fwd) if not node.recomputable or not once.isdisjoint(node.ops))


def updating(trace: Trace) -> frozenset[str]:
    """Ops that write buffers when PyTorch itself calls them: recomputed, they would count a batch twice."""
    values = {value for _, value in trace.updates}
    return frozenset(op.id for op in trace.ops if values.intersection(filter(None, op.outputs)))


def schedule_of(
    problem: MemoryProblem, runs: Sequence[Sequence[RunForward]], needs: Sequence[tuple[int, ...]]
) -> tuple[RecomputeSchedule, Simulation]:
    """The schedule in which stage t runs `runs[t]` and ends by reading `needs[t - 1]`, and its exact peak and time.
    Unlike `prune` it leaves no run out, read or not."""
    chosen = backward_of(problem)
    followed = replace(
        problem,
        bwd=tuple(
            replace(back, impls=(replace(impl, needs=read),))
            for back, impl, read in zip(problem.bwd, chosen, needs, strict=True)
        ),
    )
    kept = _kept(problem, runs, needs)
    schedule = RecomputeSchedule(tuple(tuple(stage) for stage in runs), kept, (0,) * len(needs))
    return schedule, simulate(followed, lower(followed, schedule))


def _kept(
    problem: MemoryProblem, runs: Sequence[Sequence[RunForward]], needs: Sequence[Iterable[int]]
) -> tuple[frozenset[int], ...]:
    """What each stage leaves for later ones to read."""
    needed: set[int] = set()
    kept: list[frozenset[int]] = []
    for ran, read in zip(reversed(runs), (*reversed(needs), ()), strict=True):
        kept.append(frozenset(needed))
        needed.update(read)
        for run in reversed(ran):
            needed.discard(run.node)
            needed.update(problem.fwd[run.node].inputs)
    return tuple(reversed(kept))
