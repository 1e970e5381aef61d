"""Recomputations and implementations worth having: what the trims of the 0-1 program leave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from treadle.planner.passes.memory.problem import BackwardNode, ForwardNode, MemoryProblem


def useful_sets(problem: MemoryProblem, impls_of: Sequence[Sequence[int]] | None = None) -> list[frozenset[int]]:
    """T2: useful[k] for k = 0..K: the nodes and ancestors of nodes that backward nodes k..1 may read (0: none).

    impls_of: the implementations that each backward node may have, in the order of `problem.bwd`; by default all.
    """
    sets: list[frozenset[int]] = [frozenset()]
    found: set[int] = set()
    for k in reversed(range(len(problem.bwd))):
        impls = problem.bwd[k].impls
        todo = [i for at in (range(len(impls)) if impls_of is None else impls_of[k]) for i in impls[at].needs]
        while todo:
            i = todo.pop()
            if i not in found:
                found.add(i)
                todo.extend(makers(problem.fwd[i]))
        sets.append(frozenset(found))
    return sets


def makers(node: ForwardNode) -> tuple[int, ...]:
    """Nodes whose outputs must be live, or that must run as well, when the node runs."""
    return node.inputs if node.creator is None else (*node.inputs, node.creator)


def made_for(problem: MemoryProblem, wanted: Iterable[int], there: Set[int]) -> set[int]:
    """Nodes that have to run so that all `wanted` are live, where those of `there` are."""
    again: set[int] = set()
    todo = [i for i in wanted if i not in there]
    while todo:
        i = todo.pop()
        if i not in again:
            again.add(i)
            node = problem.fwd[i]
            todo.extend(j for j in makers(node) if j not in there or j == node.creator)
    return again


def unrepeatable(problem: MemoryProblem) -> frozenset[int]:
    """Nodes that run only once, because they or their creators must not be recomputed."""
    fixed = {i for i, node in enumerate(problem.fwd) if not node.recomputable}
    return frozenset(fixed | {i for i, node in enumerate(problem.fwd) if node.creator in fixed})


def leanest_backward(problem: MemoryProblem, live: Set[int] = frozenset(), shallow: bool = False) -> tuple[int, ...]:
    """For each backward node the implementation that takes least bytes with what it reads besides `live`, the fastest
    of equals; with `shallow` the one that reads the earliest nodes, behind which least is recomputed."""
    return tuple(
        min(
            range(len(back.impls)),
            key=lambda at: (
                max(back.impls[at].needs, default=-1) if shallow else 0,
                transient_bytes(back, at)
                + sum(problem.fwd[i].out_bytes for i in back.impls[at].needs if i not in live),
                back.impls[at].time_ns,
            ),
        )
        for back in problem.bwd
    )


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
    """T4: the implementations that no other one matches in bytes, time and reads; of equals the first."""
    every = range(len(costs))

    def beats(a: int, b: int) -> bool:
        equal = costs[a] == costs[b] and needs[a] == needs[b]
        return as_good(a, b, costs, needs) and (not equal or a < b)

    return [b for b in every if not any(beats(a, b) for a in every)]


def as_good(a: int, b: int, costs: Sequence[Cost], needs: Sequence[frozenset[int]]) -> bool:
    """Whether implementation `a` can stand for `b` in any plan."""
    return needs[a] <= needs[b] and costs[a][0] <= costs[b][0] and costs[a][1] <= costs[b][1]


def forward_costs(node: ForwardNode, again: bool) -> tuple[list[Cost], list[frozenset[int]]]:
    """Costs of the implementations of a forward node, and what each needs besides its inputs: nothing."""
    costs = [(impl.workspace(again), impl.time(again)) for impl in node.impls]
    return costs, [frozenset()] * len(costs)


def backward_costs(back: BackwardNode) -> tuple[list[Cost], list[frozenset[int]]]:
    """Costs of the implementations of a backward node, and the forward nodes that each reads."""
    costs = [(transient_bytes(back, way), impl.time_ns) for way, impl in enumerate(back.impls)]
    return costs, [frozenset(impl.needs) for impl in back.impls]


def transient_bytes(back: BackwardNode, way: int) -> int:
    """Bytes that a backward node adds while it runs: its workspace, and |y_k| unless in place."""
    impl = back.impls[way]
    return impl.workspace_bytes + (0 if impl.grad_inplace else back.out_grad_bytes)
