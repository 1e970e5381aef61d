"""How two memory plans differ: budget, what is kept, recomputed, and by which implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import assert_never

from treadle.planner.documents.difference import Change, changed, differences, fields_changed, more_and_less
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.problem import BackwardNode, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward

Node = ForwardNode | BackwardNode
FIGURES = ("dependency_set", "recompute", "families", "store_all_ns", "store_all_peak_bytes")


def memory_differences(before: MemoryDecisions, after: MemoryDecisions) -> list[Change]:
    """The problem first, then the program by the names of operators."""
    return [
        *_problem(before.problem, after.problem),
        *more_and_less("recomputed", _recomputed(before), _recomputed(after), "op"),
        *more_and_less("kept for the backward pass", _kept(before), _kept(after), "output"),
        *more_and_less("implementations", _implementations(before), _implementations(after), "run"),
        *fields_changed(before, after, FIGURES),
    ]


def _problem(before: MemoryProblem, after: MemoryProblem) -> Iterator[Change]:
    yield from changed("budget_bytes", before.budget_bytes, after.budget_bytes)
    yield from changed("plain_peak_bytes", before.plain_peak_bytes, after.plain_peak_bytes)
    for category in sorted({*before.base, *after.base}):
        old, new = before.base.get(category, 0), after.base.get(category, 0)
        yield from changed(f"resident {category} bytes", old, new)
    yield from _nodes("forward pass", before.fwd, after.fwd)
    yield from _nodes("backward pass", before.bwd, after.bwd)


def _nodes(what: str, before: Sequence[Node], after: Sequence[Node]) -> Iterator[Change]:
    names = [node.op for node in before]
    yield from more_and_less(what, names, (node.op for node in after), "op")
    if names == [node.op for node in after]:
        pairs = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        if len(pairs) == 1:
            yield from differences(*pairs[0], f"{what}, {pairs[0][0].op}")
        elif pairs:
            yield Change(what, f"bytes or times of {len(pairs)} of {len(names)} ops differ")


def _recomputed(decisions: MemoryDecisions) -> list[str]:
    """The operator of every run of a forward node after its first."""
    runs = Counter(step.node for step in decisions.program if isinstance(step, RunForward))
    return [decisions.problem.fwd[node].op for node, count in runs.items() for _ in range(count - 1)]


def _kept(decisions: MemoryDecisions) -> list[str]:
    """The operators whose outputs the forward pass leaves in memory."""
    kept: set[int] = set()
    forward = False
    for step in decisions.program:
        match step:
            case EnterStage():
                if forward:
                    break
                forward = True
            case RunForward():
                kept.add(step.node)
            case Drop():
                kept.discard(step.node)
            case RunBackward():
                break
            case _:
                assert_never(step)
    return [decisions.problem.fwd[node].op for node in sorted(kept)]


def _implementations(decisions: MemoryDecisions) -> Iterator[str]:
    """Runs by other implementations than the first of a node."""
    problem = decisions.problem
    for step in decisions.program:
        match step:
            case RunForward(place, impl) if impl:
                node = problem.fwd[place]
                yield f"{node.op} by {node.impls[impl].name}"
            case RunBackward(place, impl) if impl:
                back = problem.bwd[place]
                yield f"{back.op} by {back.impls[impl].name}"
            case RunForward() | RunBackward() | EnterStage() | Drop():
                pass
            case _:
                assert_never(step)
