"""Plans of sparse gradients that are measured in turns, with random gradients of about their counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.problem import VALUE_BYTES, SparseProblem
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import Measuring
from treadle.planner.search.top import Outcome
from treadle.runtime.trial_ranks import WHERE, Ask, end_of, require_memory, set_threads, trial_ranks
from treadle.runtime.turns import in_turns, slowest

if TYPE_CHECKING:
    from treadle.runtime.scope_groups import ScopeGroups

COPIES = 4
"""How often a rank holds all gradients, if dense: as they are given, their sums, what is sent and received."""
Rows = Sequence[Sequence[SparseDecisions]]


@contextmanager
def sparse_measuring(
    problem: SparseProblem, top: int, machine: str, clock: Clock, show: Callable[[str], None] = lambda _: None
) -> Iterator[Measuring[SparseDecisions] | None]:
    """What measures the `top` cheapest schemes of each gradient, priced for `machine`; it shows that it does. Once
    `clock` has run out no further round is begun. None on ranks that only measure with the first, at the end. Raises
    InputError for a single node, or where they need more memory than there is."""
    if problem.machines == 1:
        raise InputError("found a single node, expected several, between which schemes differ", where=WHERE)
    values = sum(gradient.units * gradient.width for gradient in problem.gradients)
    require_memory(problem.ranks * COPIES * VALUE_BYTES * values)
    with trial_ranks(problem.ranks) as ask:
        yield None if ask is None else Measuring(top, partial(_times, ask, clock, show), machine=machine)


def _times(ask: Ask, clock: Clock, show: Callable[[str], None], rows: Rows) -> list[dict[int, Outcome]]:
    show(f"measuring {many(sum(map(len, rows)), 'exchange')}")
    ranks = ask(_exchanges, (tuple(map(tuple, rows)), end_of(clock)))
    return [slowest(row) for row in zip(*ranks, strict=True)]


def _exchanges(
    rank: int, world: int, rows: tuple[tuple[SparseDecisions, ...], ...], ends: float
) -> list[list[list[int]]]:
    """ns of each exchange of each row by round."""
    from treadle.runtime.scope_groups import scope_groups

    set_threads(world)
    groups = scope_groups(rows[0][0].problem.devices)
    return [_row(rank, row, groups, ends) for row in rows]


def _row(rank: int, row: Sequence[SparseDecisions], groups: ScopeGroups, ends: float) -> list[list[int]]:
    from treadle.runtime.sparse.exchange import SparseExchange
    from treadle.runtime.sparse.synthetic import random_gradient

    problem = row[0].problem
    given = {each.name: random_gradient(problem, each, rank) for each in problem.gradients}
    exchanges = [SparseExchange(decisions, groups) for decisions in row]
    times = in_turns([partial(each.exchange_together, given) for each in exchanges], ends)
    for each in exchanges:
        each.close()
    return times
