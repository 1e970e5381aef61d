"""Proven lower bounds: on the time of any plan, and on the bytes that any plan needs."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.planner.passes.memory.problem import MemoryProblem


@dataclass(frozen=True)
class Argument:
    """Why a bound holds. With `any_order` it speaks of every plan, however often and in whatever order it recomputes;
    else of those that recompute in forward order, each op at most once a stage, and with `leaving` of those among them
    in which what a backward op reads is still there when its stage is left."""

    text: str
    any_order: bool
    leaving: bool = False


ONCE = Argument("every forward and every backward operator runs at least once, with its fastest implementation", True)
PRICED = Argument(
    "what is kept when the backward pass starts has to fit the budget, and what it lacks has to be made again at least "
    "once, in whatever order: with a price on the bytes of each moment no plan is cheaper (weak duality)",
    True,
)
SOLVED = Argument(
    "the solver proved that no solution of the 0-1 program (MONeT, equations 4.1 to 4.15) is below it", False
)
SOLVED_LEAVING = Argument(
    "the solver proved that no solution of the 0-1 program (MONeT, equations 4.1 to 4.15) in which what a backward op "
    "reads is still there when its stage is left (--dependency-set leaving) is below it",
    any_order=False,
    leaving=True,
)


def least_time(problem: MemoryProblem) -> int:
    """Sum in ns of the fastest implementation of each op: no plan is faster."""
    forward = sum(
        node.time(node.fastest(False), again=False, inplace=node.inplace_of is not None)
        for node in problem.fwd
        if node.kind == "op"
    )
    return forward + sum(min(impl.time_ns for impl in node.impls) for node in problem.bwd)


def least_bytes(problem: MemoryProblem) -> int:
    """A budget below this has no plan: some operator does not even fit alone with what it reads and makes."""

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
