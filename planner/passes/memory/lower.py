"""From decisions to the program that the runtime executes (MONeT, section 4.1, Algorithms 3 and 4).

A schedule states for each stage which forward nodes run and what is kept at its end. Stages are counted from 0 here:
stage 0 is the forward pass, stage t >= 1 ends with backward node t - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.program import Drop, EnterStage, Instruction, RunBackward, RunForward


@dataclass(frozen=True)
class RecomputeSchedule:
    """`runs[t]` in increasing node order; `kept[t]` is S at the end of stage t; `backward[k]` an implementation."""

    runs: tuple[tuple[RunForward, ...], ...]
    kept: tuple[frozenset[int], ...]
    backward: tuple[int, ...]

    def needs(self, problem: MemoryProblem, stage: int) -> tuple[int, ...]:
        """What the backward node of the stage reads; the forward pass has none."""
        return problem.bwd[stage - 1].impls[self.backward[stage - 1]].needs if stage else ()


def store_all(problem: MemoryProblem) -> RecomputeSchedule:
    """Every op runs once with its fastest implementation, in place where it can; nothing is recomputed."""
    fastest_back = tuple(min(range(len(b.impls)), key=lambda way: b.impls[way].time_ns) for b in problem.bwd)
    wanted = {i for b, way in zip(problem.bwd, fastest_back, strict=True) for i in b.impls[way].needs}
    runs = tuple(
        RunForward(i, node.fastest(again=False))
        for i, node in enumerate(problem.fwd)
        if node.kind == "op" or i in wanted
    )
    everything = frozenset(run.node for run in runs)
    stages = len(problem.bwd) + 1
    return prune(problem, RecomputeSchedule((runs, *[()] * (stages - 1)), (everything,) * stages, fastest_back))


def prune(problem: MemoryProblem, schedule: RecomputeSchedule) -> RecomputeSchedule:
    """The schedule without recomputations whose results no op reads and stores that no later stage reads; every run is
    in place whose overwritten input is not read again.

    One walk backwards in time: `needed` holds what the later instructions read. Neither the objective nor the live
    bytes of any instruction rise.
    """
    needed: set[int] = set()
    runs: list[tuple[RunForward, ...]] = []
    kept: list[frozenset[int]] = []
    for stage in reversed(range(len(schedule.runs))):
        kept.append(frozenset(needed))
        entering = schedule.kept[stage - 1] if stage else frozenset()
        needed.update(schedule.needs(problem, stage))
        useful: list[RunForward] = []
        creators: set[int] = set()
        for run in reversed(schedule.runs[stage]):
            node = problem.fwd[run.node]
            first = stage == 0 and node.kind == "op"
            if first or run.node in creators or (run.node in needed and run.node not in entering):
                able = node.inplace_of is not None and node.inplace_of not in needed
                useful.append(RunForward(run.node, run.impl, inplace=able))
                needed.discard(run.node)
                needed.update(node.inputs)
                if node.creator is not None:
                    creators.add(node.creator)
        runs.append(tuple(reversed(useful)))
    return RecomputeSchedule(tuple(reversed(runs)), tuple(reversed(kept)), schedule.backward)


def lower(problem: MemoryProblem, schedule: RecomputeSchedule) -> tuple[Instruction, ...]:
    """The program of a pruned schedule: every tensor is dropped right after the last instruction that reads it."""
    program: list[Instruction] = []
    live: set[int] = set()
    for stage, (runs, kept) in enumerate(zip(schedule.runs, schedule.kept, strict=True)):
        program.append(EnterStage(len(problem.bwd) + 1 - stage))
        last_read = {i: place for place, run in enumerate(runs) for i in problem.fwd[run.node].inputs}
        last_read |= dict.fromkeys(schedule.needs(problem, stage), len(runs))
        dies: dict[int, list[int]] = {}
        for i, place in last_read.items():
            if i not in kept:
                dies.setdefault(place, []).append(i)
        for place, run in enumerate(runs):
            if run.node in live:
                program.append(Drop(run.node))
            program.append(run)
            live.add(run.node)
            overwritten = problem.fwd[run.node].inplace_of if run.inplace else None
            ends = dies.get(place, [])
            if run.node not in kept and run.node not in last_read:
                ends = [*ends, run.node]
            for i in sorted(ends):
                live.discard(i)
                if i != overwritten:
                    program.append(Drop(i))
        if stage:
            program.append(RunBackward(stage - 1, schedule.backward[stage - 1]))
            for i in sorted(dies.get(len(runs), [])):
                live.discard(i)
                program.append(Drop(i))
    return tuple(program)
