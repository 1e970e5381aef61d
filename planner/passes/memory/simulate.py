"""Byte-accurate simulation of a memory program: exact peak, time, and the curve of live bytes (MONeT, section 4.1).

At every instruction the bytes in use are

    base + gradients + outputs of forward nodes that are live + workspace of what runs,

where gradients are |Lhat_k| from the start of stage k, plus |y_k| while backward node k runs. Forward nodes that run
after the forward pass take the time and the workspace of a recomputation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, assert_never

from treadle.planner.passes.memory.lower import RecomputeSchedule, lower
from treadle.planner.passes.memory.problem import BackwardNode, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import Drop, EnterStage, Instruction, RunBackward, RunForward


class Moment(NamedTuple):
    """Bytes in use besides the base while one instruction runs. `label` is the stage, or the node's op and
    implementation."""

    label: str
    kept: int
    """Outputs of forward nodes that the forward pass made."""
    recomputed: int
    """Outputs of forward nodes that later stages made."""
    gradients: int
    workspace: int

    @property
    def activations(self) -> int:
        return self.kept + self.recomputed


class Simulation(NamedTuple):
    """Peak and total time of a program."""

    peak_bytes: int
    time_ns: int


def moments(problem: MemoryProblem, program: Iterable[Instruction]) -> Iterator[Moment]:
    """One moment per instruction, in order. The program must be one that `treadle.planner.passes.memory.check`
    accepts."""
    return (moment for moment, _ in _walk(problem, program))


def _walk(problem: MemoryProblem, program: Iterable[Instruction]) -> Iterator[tuple[Moment, int]]:
    """The moment and the time in ns of each instruction."""
    live = [0, 0]
    recomputed = [False] * len(problem.fwd)
    gradients = 0
    again = False
    for instruction in program:
        match instruction:
            case EnterStage(k):
                again = k <= len(problem.bwd)
                gradients = problem.bwd[-k].live_grad_bytes if again else 0
                yield Moment(f"stage {k}", live[0], live[1], gradients, 0), 0
            case RunForward(i, impl, inplace):
                node = problem.fwd[i]
                recomputed[i] = again
                live[again] += node.out_bytes
                if inplace and node.inplace_of is not None:
                    live[recomputed[node.inplace_of]] -= problem.fwd[node.inplace_of].out_bytes
                workspace = node.impls[impl].workspace(again)
                moment = Moment(_label(node, impl, inplace), live[0], live[1], gradients, workspace)
                yield moment, node.time(impl, again, inplace)
            case Drop(i):
                live[recomputed[i]] -= problem.fwd[i].out_bytes
                yield Moment("drop", live[0], live[1], gradients, 0), 0
            case RunBackward(k, impl):
                back, chosen = problem.bwd[k], problem.bwd[k].impls[impl]
                made = 0 if chosen.grad_inplace else back.out_grad_bytes
                moment = Moment(_label(back, impl), live[0], live[1], gradients + made, chosen.workspace_bytes)
                yield moment, chosen.time_ns
            case _:
                assert_never(instruction)


def _label(node: ForwardNode | BackwardNode, impl: int, inplace: bool = False) -> str:
    name = node.impls[impl].name
    words = (*((name,) if name != "default" else ()), *(("in place",) if inplace else ()))
    return f"{node.op} ({', '.join(words)})" if words else node.op


def simulate(problem: MemoryProblem, program: Iterable[Instruction]) -> Simulation:
    """Exact peak in bytes, base included, and the sum of the times of everything that runs, in ns."""
    peak = time = 0
    for moment, time_ns in _walk(problem, program):
        peak = max(peak, sum(moment[1:]))
        time += time_ns
    return Simulation(problem.base_bytes + peak, time)


def simulated(problem: MemoryProblem, schedule: RecomputeSchedule) -> Simulation:
    """Exact peak and time of a pruned schedule."""
    return simulate(problem, lower(problem, schedule))


def curve(problem: MemoryProblem, program: Iterable[Instruction]) -> list[tuple[str, dict[str, int]]]:
    """(label, bytes by category) at each instruction, for pictures; the categories add up to the bytes in use."""
    return [
        (
            label,
            {
                **problem.base,
                "activations": kept,
                "recomputed": recomputed,
                "live_gradients": gradients,
                "workspace": workspace,
            },
        )
        for label, kept, recomputed, gradients, workspace in moments(problem, program)
    ]
