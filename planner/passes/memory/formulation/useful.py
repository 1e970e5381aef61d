"""What a plan can be expected to do: the sets and implementations that the trims of the 0-1 program leave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from treadle.planner.passes.memory.problem import BackwardNode, ForwardNode, MemoryProblem


def useful_sets(problem: MemoryProblem, ways: Sequence[Sequence[int]] | None = None) -> list[frozenset[int]]:
    """T2: useful[k] for k = 0..K: the nodes and ancestors of nodes that backward nodes k..1 may read (0: none).

    ways: the implementations that each backward node may have, in the order of `problem.bwd`; without it all.
    """
    sets: list[frozenset[int]] = [frozenset()]
    found: set[int] = set()
    for k in reversed(range(len(problem.bwd))):
        impls = problem.bwd[k].impls
        todo = [i for way in (range(len(impls)) if ways is None else ways[k]) for i in impls[way].needs]
        while todo:
            i = todo.pop()
            if i not in found:
                found.add(i)
                todo.extend(makers(problem.fwd[i]))
        sets.append(frozenset(found))
    return sets


def makers(node: ForwardNode) -> tuple[int, ...]:
    """What must be there, or run as well, when the node runs."""
    return node.inputs if node.creator is None else (*node.inputs, node.creator)


def made_for(problem: MemoryProblem, wanted: Iterable[int], there: Set[int]) -> set[int]:
    """What has to run so that everything `wanted` is there."""
    again: set[int] = set()
    todo = [i for i in wanted if i not in there]
    while todo:
        i = todo.pop()
        if i not in again:
            again.add(i)
            node = problem.fwd[i]
            todo.extend(j for j in makers(node) if j not in there or j == node.creator)
    return again


def feeds(problem: MemoryProblem, runnable: frozenset[int]) -> list[tuple[int, ...]]:
    """L_i for every i: the j < i that some t >= i in `runnable` reads."""
    last: dict[int, int] = {}
    for t in sorted(runnable):
        last.update(dict.fromkeys(problem.fwd[t].inputs, t))
    found: list[tuple[int, ...]] = []
    behind: list[int] = []
    for i in range(len(problem.fwd)):
        behind = [j for j in behind if last[j] >= i]
        found.append(tuple(behind))
        if i in last:
            behind.append(i)
    return found


Cost = tuple[int, int]
"""(bytes, time) of an implementation."""


def undominated(costs: Sequence[Cost], needs: Sequence[frozenset[int]]) -> list[int]:
    """T4: the implementations that no other one is at least as good as in bytes, time and what it reads; the first of
    equals stays."""
    every = range(len(costs))

    def beats(a: int, b: int) -> bool:
        equal = costs[a] == costs[b] and needs[a] == needs[b]
        return as_good(a, b, costs, needs) and (not equal or a < b)

    return [b for b in every if not any(beats(a, b) for a in every)]


def as_good(a: int, b: int, costs: Sequence[Cost], needs: Sequence[frozenset[int]]) -> bool:
    """Whether implementation `a` can stand for `b` in any plan."""
    return needs[a] <= needs[b] and costs[a][0] <= costs[b][0] and costs[a][1] <= costs[b][1]


def forward_costs(node: ForwardNode, again: bool) -> tuple[list[Cost], list[frozenset[int]]]:
    """What tells the implementations of a forward node apart; they all read its inputs."""
    costs = [(impl.workspace(again), impl.time(again)) for impl in node.impls]
    return costs, [frozenset()] * len(costs)


def backward_costs(back: BackwardNode) -> tuple[list[Cost], list[frozenset[int]]]:
    """What tells the implementations of a backward node apart."""
    costs = [(transient_bytes(back, way), impl.time_ns) for way, impl in enumerate(back.impls)]
    return costs, [frozenset(impl.needs) for impl in back.impls]


def transient_bytes(back: BackwardNode, way: int) -> int:
    """What a backward node adds to |Lhat_k| and the union while it runs: its workspace, and |y_k| unless in place."""
    impl = back.impls[way]
    return impl.workspace_bytes + (0 if impl.grad_inplace else back.out_grad_bytes)
