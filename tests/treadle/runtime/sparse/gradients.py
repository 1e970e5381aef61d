"""Random sparse gradients of ranks, and their sums in the order of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treadle.planner.documents.sparsity import Form


def random_gradients(
    generator: np.random.Generator, ranks: int, form: Form, units: int, width: int, *, whole: bool = True
) -> list[Tensor]:
    """One gradient for each rank: of any density, with many zeros near the end; COO ones repeat indices. `whole`
    numbers have exact sums."""
    found = []
    for _ in range(ranks):
        entries = int(generator.integers(0, units + 1))
        indices = (generator.random(entries) ** 2 * units).astype(np.int64)
        drawn = generator.integers(-4, 5, (entries, width)) if whole else generator.standard_normal((entries, width))
        values = torch.from_numpy(drawn.astype(np.float32))
        gradient = coo(indices, values, units)
        found.append(gradient if form == "coo" else gradient.to_dense())
    return found


def coo(indices: Sequence[int] | np.ndarray, values: Tensor, units: int) -> Tensor:
    """An uncoalesced gradient [units, width]."""
    rows = torch.as_tensor(np.asarray(indices, dtype=np.int64)).view(1, -1)
    return torch.sparse_coo_tensor(rows, values, (units, values.shape[1]), check_invariants=True)


def dense_sum(gradients: Sequence[Tensor]) -> Tensor:
    """Added up in the order of ranks."""
    total = torch.zeros(gradients[0].shape)
    for each in gradients:
        total += each.to_dense()
    return total
