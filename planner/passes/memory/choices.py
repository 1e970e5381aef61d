"""What a memory plan does with each op: whether its output is kept or recomputed, and by which implementation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import assert_never

from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward


@dataclass(frozen=True)
class ForwardChoice:
    """`kept`: its output of the forward pass is live when the backward pass starts. `first` is None for an intermediate
    that the forward pass does not make; `again` holds its recomputations in order, their times sum to `again_ns`."""

    node: int
    first: RunForward | None
    kept: bool
    again: tuple[RunForward, ...]
    again_ns: int


@dataclass(frozen=True)
class Use:
    """Number of ops that run by an implementation of `family` at least once; `op` is the operator, as `convolution`.

    An unnamed implementation is `default`; a forward op that overwrites its input is of family `inplace`, one that
    reads kept statistics of family `statistics`.
    """

    family: str
    op: str
    implementation: str
    ops: int

    def __str__(self) -> str:
        return f"{self.ops} {self.op}" + (f" by {self.implementation}" if self.implementation != "default" else "")


def forward_choices(decisions: MemoryDecisions) -> list[ForwardChoice]:
    """One for each forward node that runs, in order."""
    problem = decisions.problem
    first: dict[int, RunForward] = {}
    again: dict[int, list[RunForward]] = {}
    live: set[int] = set()
    kept: set[int] = set()
    stage = len(problem.bwd) + 1
    for instruction in decisions.program:
        match instruction:
            case EnterStage(k):
                kept = set(live) if stage > len(problem.bwd) else kept
                stage = k
            case RunForward(i, _, inplace) as run:
                overwritten = problem.fwd[i].inplace_of
                if inplace and overwritten is not None:
                    live.discard(overwritten)
                live.add(i)
                if stage > len(problem.bwd):
                    first[i] = run
                else:
                    again.setdefault(i, []).append(run)
            case Drop(i):
                live.discard(i)
            case RunBackward():
                pass
            case _:
                assert_never(instruction)
    return [
        ForwardChoice(
            i,
            first.get(i),
            i in kept,
            tuple(again.get(i, ())),
            sum(problem.fwd[i].time(run.impl, True, run.inplace) for run in again.get(i, ())),
        )
        for i in sorted(first.keys() | again.keys())
    ]


def uses(decisions: MemoryDecisions) -> list[Use]:
    """Number of ops by family and implementation, most first in each family; without intermediates and ops of no
    family."""
    problem = decisions.problem
    found: set[tuple[str, str, str, tuple[str, int]]] = set()
    for choice in forward_choices(decisions):
        node, place = problem.fwd[choice.node], ("fwd", choice.node)
        if node.kind == "intermediate":
            continue
        for run in (*choice.again, *((choice.first,) if choice.first else ())):
            impl = node.impls[run.impl]
            if impl.family:
                found.add((impl.family, node.op, impl.name, place))
            if run.inplace:
                found.add(("inplace", node.op, "default", place))
        if any(node.impls[run.impl].recompute_time_ns is not None for run in choice.again):
            found.add(("statistics", node.op, "default", place))
    for instruction in decisions.program:
        if isinstance(instruction, RunBackward):
            back = problem.bwd[instruction.node]
            impl = back.impls[instruction.impl]
            if impl.family:
                found.add((impl.family, back.op, impl.name, ("bwd", instruction.node)))
    counts = Counter((family, short_name(op), name) for family, op, name, _ in found)
    return sorted((Use(*key, count) for key, count in counts.items()), key=lambda use: (use.family, -use.ops, str(use)))


def short_name(op: str) -> str:
    """`aten.convolution.default` is `convolution`, `treadle.relu_mask` is `relu_mask`; other names are returned as they
    are."""
    parts = op.split(".")
    return parts[1] if len(parts) in (2, 3) and parts[0] in ("aten", "treadle") else op
