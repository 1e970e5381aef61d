"""The tables that a 0-1 program of a memory problem is written into, and the units of its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from treadle.planner.passes.memory.formulation.switches import DependencySet, Switches
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.solver import Model, Var

MaybeVar = Var | None
"""None stands for a variable that is fixed to 0."""
Terms = list[tuple[Var, int | float]]


@dataclass(frozen=True)
class Formulation:
    """A model with the tables that read its solution. Tables are indexed by k (0..K+1), then by forward node."""

    problem: MemoryProblem
    dependency_set: DependencySet
    switches: Switches
    model: Model
    one: Var
    peak: MaybeVar
    s: list[list[MaybeVar]]
    r: list[list[MaybeVar]]
    delta: list[list[dict[int, Var]]]
    dhat: list[dict[int, Var]]
    q: list[list[MaybeVar]]
    p: list[list[MaybeVar]]
    u: list[list[Terms]]
    """The expressions U_k(i)."""
    time_unit: float
    """Nanoseconds of one unit of the objective."""
    units: Units

    @property
    def stages(self) -> int:
        """K."""
        return len(self.problem.bwd)

    def again(self, k: int) -> bool:
        """Whether forward nodes that run in stage k are recomputed; in stage K+1 they run for the first time."""
        return k <= self.stages

    def auxiliary(self) -> Var:
        """A variable that is 0 or 1 wherever the others are."""
        return self.model.bool_var() if self.switches.integral else self.model.continuous(0.0, 1.0)

    def at_most(self, var: Var, others: Iterable[MaybeVar]) -> None:
        """The row var <= sum of the others."""
        self.model.add_linear([(var, 1), *((other, -1) for other in others if other is not None)], ub=0)


@dataclass(frozen=True)
class Units:
    """`bytes_` is one unit of the memory rows; `scaled` turns bytes into units."""

    bytes_: int
    scaled: Callable[[int], int | float]

    @staticmethod
    def of(problem: MemoryProblem, switches: Switches) -> Units:
        """The greatest common divisor. Where that leaves numbers too long for a solver's tolerances, the unit is about
        2^-16 of the sum of sizes, a power of two, so that sizes are exact as floats."""
        sizes = all_sizes(problem)
        total, common = max(1, sum(node.out_bytes for node in problem.fwd)), math.gcd(*sizes) or 1
        if total // common <= 2**20 or switches.integral:
            return Units(common, lambda size: -(-size // common))
        unit = 2 ** max(0, (total >> 16).bit_length())
        return Units(unit, lambda size: size / unit)

    def room(self, available: int, resident: int) -> int | float:
        """Right side of a row: what `resident` bytes leave of `available`, in units that are whole where sizes are."""
        taken = self.scaled(resident)
        return (available // self.bytes_ if isinstance(taken, int) else available / self.bytes_) - taken


def shortened(model: Model, terms: Terms) -> Terms:
    """`terms`, or one continuous variable that is at least their sum where they are more than eight."""
    if len(terms) <= 8:
        return terms
    total = model.continuous(0.0, sum(coef * model.upper[var] for var, coef in terms))
    model.add_linear([(total, -1), *terms], ub=0)
    return [(total, 1)]


def choice(model: Model, candidates: list[int], chosen: Var) -> dict[int, Var]:
    """One 0-1 variable for each candidate; they add up to `chosen`."""
    if len(candidates) == 1:
        return {candidates[0]: chosen}
    variables = {impl: model.bool_var() for impl in candidates}
    model.add_linear([*((var, 1) for var in variables.values()), (chosen, -1)], 0, 0)
    return variables


def all_sizes(problem: MemoryProblem) -> list[int]:
    """Bytes of everything that is made or used, once for each place where it occurs."""
    sizes = [node.out_bytes for node in problem.fwd]
    sizes += [impl.workspace(again) for node in problem.fwd for impl in node.impls for again in (False, True)]
    for back in problem.bwd:
        sizes += [back.live_grad_bytes, back.out_grad_bytes, *(impl.workspace_bytes for impl in back.impls)]
    return sizes
