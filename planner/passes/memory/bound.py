"""Proven lower bounds: on the time of any plan, and on the bytes that any plan needs."""

from __future__ import annotations

from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.search.bound import Argument, Bound

KEPT = "what is kept when each of {windows} of backward operators starts has to fit the budget, and what it lacks"
SENTENCES = {
    "once": "every forward and every backward operator runs at least once, with its fastest implementation",
    "priced": (
        "what is kept when the backward pass starts has to fit the budget, and what it lacks has to be recomputed at "
        "least once, in whatever order: with a price on the bytes of each moment no plan is cheaper (weak duality)"
    ),
    "windows": KEPT + " has to be recomputed at least once, in whatever order: proved by the solver",
    "solved": "the solver proved that no solution of the 0-1 program (MONeT, equations 4.1 to 4.15) is below it",
    "solved leaving": (
        "the solver proved that no solution of the 0-1 program (MONeT, equations 4.1 to 4.15) in which what a backward "
        "op reads is still there when its stage is left (--as-published) is below it"
    ),
    "retention": "the solver proved that no plan with each recomputation in the order of the forward pass is below it",
}
"""The argument of each kind of bound."""


def sentence(bound: Bound) -> str:
    """Why `bound` holds, in words."""
    return bound.argument.printed(SENTENCES)


def once(problem: MemoryProblem) -> Bound:
    """Every op runs at least once."""
    return Bound(least_time(problem), Argument("once"), "any order")


def least_time(problem: MemoryProblem) -> int:
    """Sum of the fastest implementation of each op in ns; no plan is faster."""
    forward = sum(
        node.time(node.fastest(False), again=False, inplace=node.inplace_of is not None)
        for node in problem.fwd
        if node.kind == "op"
    )
    return forward + sum(min(impl.time_ns for impl in node.impls) for node in problem.bwd)


def least_bytes(problem: MemoryProblem) -> int:
    """The most bytes that one operator reads, makes and works in; no plan fits a smaller budget."""

    def size(nodes: tuple[int, ...]) -> int:
        return sum(problem.fwd[i].out_bytes for i in set(nodes))

    moments = [0]
    for node in problem.fwd:
        if node.kind == "op":
            made = 0 if node.inplace_of is not None else node.out_bytes
            moments.append(size(node.inputs) + made + min(impl.workspace_bytes for impl in node.impls))
    for back in problem.bwd:
        moments.append(
            back.live_grad_bytes
            + min(
                size(impl.needs) + impl.workspace_bytes + (0 if impl.grad_inplace else back.out_grad_bytes)
                for impl in back.impls
            )
        )
    return problem.base_bytes + max(moments)
