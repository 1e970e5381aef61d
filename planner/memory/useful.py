"""What a plan can be expected to do: the sets and implementations that the trims of the 0-1 program leave."""

from __future__ import annotations

from collections.abc import Sequence

from planner.memory.problem import BackwardNode, MemoryProblem


def useful_sets(problem: MemoryProblem) -> list[frozenset[int]]:
    """T2: useful[k] for k = 0..K: the nodes and ancestors of nodes that backward nodes k..1 may read (0: none)."""
    sets: list[frozenset[int]] = [frozenset()]
    found: set[int] = set()
    for back in reversed(problem.bwd):
        todo = [i for impl in back.impls for i in impl.needs]
        while todo:
            i = todo.pop()
            if i not in found:
                found.add(i)
                creator = problem.fwd[i].creator
                todo.extend(problem.fwd[i].inputs if creator is None else (*problem.fwd[i].inputs, creator))
        sets.append(frozenset(found))
    return sets


def feeds(problem: MemoryProblem, runnable: frozenset[int]) -> list[tuple[int, ...]]:
    """L_i for every i: the j < i that some t >= i in `runnable` reads."""
    last: dict[int, int] = {}
    for t in sorted(runnable):
        last.update(dict.fromkeys(problem.fwd[t].inputs, t))
    return [tuple(j for j, t in sorted(last.items()) if j < i <= t) for i in range(len(problem.fwd))]


def undominated(costs: Sequence[tuple[int, int]], needs: Sequence[frozenset[int]]) -> list[int]:
    """T4: the implementations, of (bytes, time) and what they read, that no other one is at least as good as in all
    three; the first of equals stays."""

    def beats(a: int, b: int) -> bool:
        if not (needs[a] <= needs[b] and costs[a][0] <= costs[b][0] and costs[a][1] <= costs[b][1]):
            return False
        return costs[a] != costs[b] or needs[a] != needs[b] or a < b

    every = range(len(costs))
    return [b for b in every if not any(beats(a, b) for a in every)]


def transient_bytes(back: BackwardNode, way: int) -> int:
    """What a backward node adds to |Lhat_k| and the union while it runs: its workspace, and |y_k| unless in place."""
    impl = back.impls[way]
    return impl.workspace_bytes + (0 if impl.grad_inplace else back.out_grad_bytes)
