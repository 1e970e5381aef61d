"""An exact dynamic program over stage boundaries: the independent oracle of the memory program.

The state between stages is the set of stored tensors. Each stage tries every set of runs, of in-place runs and of
tensors to keep, and gives each run its fastest implementation that fits. Sets are bit masks. For a handful of nodes.
"""

from __future__ import annotations

import itertools
from functools import cache

from planner.memory.problem import MemoryProblem

INFINITE = 10**18


def optimum(problem: MemoryProblem, dependency_set: str = "entering") -> int | None:
    """Least time of any plan within the budget, None where there is none."""
    n, stages = len(problem.fwd), len(problem.bwd)
    room = problem.budget_bytes - problem.base_bytes
    size = [node.out_bytes for node in problem.fwd]
    inputs = [sum(1 << j for j in set(node.inputs)) for node in problem.fwd]
    weight = [sum(size[i] for i in range(n) if mask >> i & 1) for mask in range(1 << n)]
    ops = sum(1 << i for i, node in enumerate(problem.fwd) if node.kind == "op")

    def subsets(mask: int):
        sub = mask
        while True:
            yield sub
            if not sub:
                return
            sub = (sub - 1) & mask

    @cache
    def overwritten_choices(runs: int) -> tuple[tuple[int, int], ...]:
        """(nodes that run in place, tensors they overwrite) for every choice among `runs`."""
        can = [i for i in range(n) if runs >> i & 1 and problem.fwd[i].inplace_of is not None]
        picks = itertools.chain.from_iterable(itertools.combinations(can, count) for count in range(len(can) + 1))
        return tuple((sum(1 << i for i in p), sum(1 << problem.fwd[i].inplace_of for i in p)) for p in picks)

    def run_cost(entering: int, runs: int, in_place: int, union: int, gradients: int, again: bool) -> int:
        total = 0
        for i in range(n):
            if not runs >> i & 1:
                continue
            feeding = 0
            for t in range(i, n):
                if runs >> t & 1:
                    feeding |= inputs[t]
            behind = (1 << i) - 1
            held = weight[(union | feeding) & behind] + size[i] + weight[entering & ~behind & ~(1 << i)]
            if in_place >> i & 1:
                held -= size[problem.fwd[i].inplace_of]
                total -= problem.fwd[i].inplace_saves_ns
            costs = [(w.workspace_bytes, w.time_ns) for w in problem.fwd[i].impls]
            if again:
                costs = [
                    (
                        c if w.recompute_workspace_bytes is None else w.recompute_workspace_bytes,
                        t if w.recompute_time_ns is None else w.recompute_time_ns,
                    )
                    for (c, t), w in zip(costs, problem.fwd[i].impls, strict=True)
                ]
            fitting = [time for workspace, time in costs if gradients + held + workspace <= room]
            if not fitting:
                return INFINITE
            total += min(fitting)
        return total

    def runnable(entering: int, runs: int, forward: bool) -> bool:
        for i in range(n):
            if runs >> i & 1:
                node = problem.fwd[i]
                if not forward and (not node.recomputable or inputs[i] & ~(entering | runs)):
                    return False
                if node.creator is not None and not runs >> node.creator & 1:
                    return False
        return True

    @cache
    def rest(stage: int, entering: int) -> int:
        """Least time of backward nodes stage.. when `entering` is stored."""
        if stage == stages:
            return 0
        back = problem.bwd[stage]
        gradients = back.live_grad_bytes
        if gradients + weight[entering] > room:
            return INFINITE
        best = INFINITE
        for impl in back.impls:
            needs = sum(1 << j for j in set(impl.needs))
            made = impl.workspace_bytes + (0 if impl.grad_inplace else back.out_grad_bytes)
            for runs in range(1 << n):
                if needs & ~(entering | runs) or not runnable(entering, runs, False):
                    continue
                for in_place, gone in overwritten_choices(runs):
                    if gone & needs:
                        continue
                    for kept in subsets((entering | runs) & ~gone):
                        if dependency_set == "leaving" and needs & ~(kept | runs):
                            continue
                        if gradients + made + weight[kept | needs] > room:
                            continue
                        ahead = rest(stage + 1, kept)
                        if ahead + impl.time_ns >= best:
                            continue
                        cost = run_cost(entering, runs, in_place, kept | needs, gradients, True)
                        best = min(best, ahead + impl.time_ns + cost)
        return best

    best = INFINITE
    for extra in subsets(((1 << n) - 1) & ~ops):
        runs = ops | extra
        for in_place, gone in overwritten_choices(runs):
            for kept in subsets(runs & ~gone):
                best = min(best, run_cost(0, runs, in_place, kept, 0, False) + rest(0, kept))
    return None if best >= INFINITE else best
