"""What a memory program allocates and frees, event by event; the peak is that of the byte-accurate simulation."""

from __future__ import annotations

from typing import assert_never

from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import Drop, EnterStage, Instruction, RunBackward, RunForward
from treadle.planner.passes.memory.simulate import moments
from treadle.planner.timeline.allocations import Allocations, MemoryEvent, PlannedBlock

GRADIENTS = "live gradients"
"""The gradients that are live in a stage are one block, because a plan has only their sum."""


def allocations(decisions: MemoryDecisions) -> Allocations:
    """Blocks of a plan that its checker accepts, by category: the resident bytes, outputs of forward nodes
    (activations, or recomputed), live gradients and workspace. Names and lines are those of the program."""
    walk = _Walk(decisions.problem)
    labels = (moment.label for moment in moments(decisions.problem, decisions.program))
    for line, (instruction, label) in enumerate(zip(decisions.program, labels, strict=True)):
        walk.line, walk.label = line, label
        walk.run(instruction)
    return Allocations(tuple(walk.blocks), tuple(walk.events))


class _Walk:
    """The blocks and events so far. `live` has the index of the block of each forward node and category."""

    def __init__(self, problem: MemoryProblem) -> None:
        self.problem = problem
        self.blocks: list[PlannedBlock] = []
        self.events: list[MemoryEvent] = []
        self.live: dict[int | str, int] = {}
        self.time_ns = self.line = 0
        self.label = self.stage = ""
        self.again = False
        for category, count in problem.base.items():
            self.label = category
            self.allocate(category, category, count)

    def allocate(self, key: int | str, category: str, count: int) -> None:
        if count:
            self.live[key] = len(self.blocks)
            self.events.append(MemoryEvent(self.time_ns, len(self.blocks), freed=False))
            self.blocks.append(PlannedBlock(self.label, category, count, self.line, self.stage))

    def free(self, key: int | str) -> None:
        if key in self.live:
            self.events.append(MemoryEvent(self.time_ns, self.live.pop(key), freed=True))

    def run(self, instruction: Instruction) -> None:
        problem = self.problem
        match instruction:
            case EnterStage(k):
                self.again = k <= len(problem.bwd)
                self.stage = f"stage {k}, {f'backward of {problem.bwd[-k].op}' if self.again else 'the forward pass'}"
                if self.again:
                    self.free(GRADIENTS)
                    self.label = f"{GRADIENTS} of stage {k}"
                    self.allocate(GRADIENTS, GRADIENTS, problem.bwd[-k].live_grad_bytes)
            case RunForward(i, impl, inplace):
                node = problem.fwd[i]
                if inplace and node.inplace_of is not None:
                    self.free(node.inplace_of)
                self.allocate(i, "recomputed" if self.again else "activations", node.out_bytes)
                self.work(node.impls[impl].workspace(self.again), node.time(impl, self.again, inplace))
            case Drop(i):
                self.free(i)
            case RunBackward(k, impl):
                back, chosen = problem.bwd[k], problem.bwd[k].impls[impl]
                self.allocate("made", GRADIENTS, 0 if chosen.grad_inplace else back.out_grad_bytes)
                self.work(chosen.workspace_bytes, chosen.time_ns)
                self.free("made")
            case _:
                assert_never(instruction)

    def work(self, workspace_bytes: int, time_ns: int) -> None:
        """The call itself: its workspace lives as long as it runs."""
        self.allocate("workspace", "workspace", workspace_bytes)
        self.time_ns += time_ns
        self.free("workspace")
