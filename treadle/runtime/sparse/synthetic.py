"""Random gradients whose numbers of non-zero units, and of those that participants share, are about a problem's.

Some units are not zero on any participant, others on each with one probability q. With H and C of them, m participants
have H + C (1 - (1 - q)^m) in expectation, which is fitted to the unions of 1, 2 and n participants. Where units lie is
uniform, so even ranges are as full as hashed parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from treadle.planner.passes.sparse.problem import SparseGradient, SparseProblem

Indices = NDArray[np.int64]
HALVINGS = 60


class SharedUnitsModel(NamedTuple):
    """`everywhere` units that all participants have, and `somewhere` that each has with the probability `chance`."""

    everywhere: int
    somewhere: int
    chance: float

    def union(self, participants: int) -> float:
        """Expected units in the sum of as many participants."""
        return self.everywhere + self.somewhere * (1 - (1 - self.chance) ** participants)


def fitted(unions: Sequence[int], units: int) -> SharedUnitsModel:
    """The model of unions of 1 to n participants, among `units` units."""
    one, n = unions[0], len(unions)
    if n == 1 or unions[-1] == one:
        return SharedUnitsModel(one, 0, 0.0)
    second = max(1, unions[1] - one)
    grown = (unions[-1] - one) / second
    low, high = 0.0, 1.0
    if n > 2:
        for _ in range(HALVINGS):
            chance = (low + high) / 2
            low, high = (chance, high) if (1 - (1 - chance) ** (n - 1)) / max(chance, 1e-12) > grown else (low, chance)
    else:
        low = max(0.0, 2 - unions[1] / one)
    # No more units than there are, and no fewer everywhere than none.
    chance = min(max(low, one / units, second / (units + second)), 1 - 1 / (2 * units))
    somewhere = min(round(second / (chance * (1 - chance))), round(one / chance), units)
    return SharedUnitsModel(max(0, min(one - round(somewhere * chance), units - somewhere)), somewhere, chance)


def index_set(gradient: SparseGradient, units: int, shard: int, node: int) -> Indices:
    """The ascending distinct units of one shard, from 0, that are not zero on one node."""
    model = fitted([min(union, units) for union in gradient.unions], units)
    common = np.random.default_rng([units, shard]).permutation(units)
    own = np.random.default_rng([units, shard, node])
    drawn = own.permutation(model.somewhere)[: round(model.somewhere * model.chance)]
    found: Indices = np.sort(common[np.concatenate([np.arange(model.everywhere), model.everywhere + drawn])])
    return found


def index_sets(problem: SparseProblem, gradient: SparseGradient, shard: int) -> list[Indices]:
    """Those of all nodes."""
    start, stop = unit_range(problem, gradient, shard)
    return [index_set(gradient, stop - start, shard, node) for node in range(problem.machines)]


def random_gradient(problem: SparseProblem, gradient: SparseGradient, rank: int) -> Tensor:
    """The gradient of one rank, of whole numbers, so that sums are exact: [units, width] in its form. The ranks of a
    node share the units of the node out; COO gradients repeat indices as often as the problem has it."""
    node, local = divmod(rank, problem.devices)
    mine = []
    for shard in range(problem.devices):
        start, stop = unit_range(problem, gradient, shard)
        found = start + index_set(gradient, stop - start, shard, node)
        mine.append(found[local :: problem.devices])
    indices, generator = np.concatenate(mine), np.random.default_rng([rank, gradient.units])
    if gradient.form == "coo" and len(indices):
        again = max(0, gradient.occurrences - len(indices))
        indices = np.concatenate([indices, generator.choice(indices, again)])
    values = generator.integers(1, 9, (len(indices), gradient.width)).astype(np.float32)
    rows = torch.from_numpy(indices).view(1, -1)
    shape = (gradient.units, gradient.width)
    made = torch.sparse_coo_tensor(rows, torch.from_numpy(values), shape, check_invariants=False)
    return made if gradient.form == "coo" else made.to_dense()


def unit_range(problem: SparseProblem, gradient: SparseGradient, shard: int) -> tuple[int, int]:
    """The units of a shard."""
    return shard * gradient.units // problem.devices, (shard + 1) * gradient.units // problem.devices
