"""Tensors that a stage holds for a later run of its own (the sets L_i^k of MONeT, section 4.2, exactly).

For the readers t1 < t2 < .. of x_j that may run in a stage let

    w_tj >= r_t,    w_tj >= w_t'j for the next reader t',    w_tj >= U(j) for the last

where U(j) = 1 if x_j is kept beyond the stage or read by its backward node. While the stage passes i, x_j with j < i
is live if and only if w_tj = 1 for the first reader t >= i, or U(j) = 1 without such a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from treadle.planner.passes.memory.formulation.tables import Terms
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.solver import Model, Var


def waiting(
    problem: MemoryProblem,
    model: Model,
    one: Var,
    runs: Mapping[int, Var],
    union: Callable[[int], Terms],
    auxiliary: Callable[[], Var],
) -> Callable[[int, int], Terms]:
    """waits(i, j) is the expression above for x_j while the stage passes i; calling it adds its rows.

    runs: the nodes that may run in the stage; `one` stands for a run that always happens. union: U. auxiliary: makes
    a variable in [0, 1].
    """
    readers: dict[int, list[int]] = {}
    for t in sorted(runs):
        for j in set(problem.fwd[t].inputs):
            readers.setdefault(j, []).append(t)
    known: dict[tuple[int, int], Terms] = {}

    def from_reader(j: int, place: int) -> Terms:
        if place == len(readers.get(j, ())):
            return union(j)
        if (j, place) not in known:
            run = runs[readers[j][place]]
            later = [] if run == one else from_reader(j, place + 1)
            if not later or later == [(one, 1)]:
                known[j, place] = later or [(run, 1)]
            else:
                w = auxiliary()
                model.add_linear([(run, 1), (w, -1)], ub=0)
                model.add_linear([*later, (w, -1)], ub=0)
                known[j, place] = [(w, 1)]
        return known[j, place]

    return lambda i, j: from_reader(j, sum(t < i for t in readers.get(j, ())))
