"""The memory that an exchange of gradients takes, in bytes, on the rank that needs most."""

from __future__ import annotations

from torch import Tensor

from treadle.planner.passes.sparse.decisions import GradientPlan, SparseDecisions
from treadle.planner.passes.sparse.problem import INDEX_BYTES, VALUE_BYTES, SparseGradient
from treadle.planner.passes.sparse.rounds import exchange
from treadle.planner.passes.sparse.schemes import BY_NAME, DENSE
from treadle.runtime.sparse.division import Hashed
from treadle.runtime.sparse.exchange import SparseExchange


def kept_bytes(decisions: SparseDecisions) -> int:
    """What lives from one step to the next: for hashed parts the hash memory, the units of every part, and the rank of
    every unit in its part; for COO gradients the place of every unit too."""
    return sum(map(lambda *pair: _kept(decisions, *pair), decisions.gradients, decisions.problem.gradients))


def kept_tensors(exchange: SparseExchange) -> list[Tensor]:
    """The tensors of an exchange that `kept_bytes` counts."""
    found: list[Tensor | None] = []
    for each in exchange.gradients.values():
        division = each.inter.division
        if isinstance(division, Hashed):
            parts = [division.part(number) for number in range(division.parts)]
            found += [division.memory.tensor, division.place, parts[0].rank, *(part.listed for part in parts)]
    return [tensor for tensor in found if tensor is not None]


def exchange_bytes(decisions: SparseDecisions) -> int:
    """The most that lives during the exchange of one gradient, beyond that: parts as they came, and the sum that is put
    together from them."""
    problem, most = decisions.problem, 0
    for plan, gradient in zip(decisions.gradients, problem.gradients, strict=True):
        entry, whole = VALUE_BYTES * gradient.width, VALUE_BYTES * gradient.width * gradient.units
        if plan.scheme == DENSE.name:
            most = max(most, 2 * whole)
        else:
            sums = 2 * gradient.unions[-1] * (INDEX_BYTES + entry)
            most = max(most, sums + (whole if gradient.form == "dense" else 0))
    return most


def _kept(decisions: SparseDecisions, plan: GradientPlan, gradient: SparseGradient) -> int:
    if plan.memory is None:
        return 0
    problem = decisions.problem
    parts = exchange(BY_NAME[plan.scheme], problem.machines).parts
    tables = 2 if gradient.form == "dense" else 3
    return INDEX_BYTES * (tables * problem.shard(gradient) + parts * (plan.memory.slots + plan.memory.serial))
