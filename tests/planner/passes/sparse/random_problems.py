"""Sparse problems with any counts that index sets may have."""

from __future__ import annotations

import random
from math import ceil
from typing import Literal

from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.sparse_costs import SparseWork
from treadle.planner.passes.sparse.problem import VERSION, BlockCounts, SparseGradient, SparseProblem


def random_gradient(rng: random.Random, name: str, n: int, devices: int) -> SparseGradient:
    """Counts of units for `n` participants; empty gradients, full ones and full overlap are common."""
    units = rng.choice([1, 9, 1000, 50_000])
    shard = -(-units // devices)
    unions = [rng.choice([0, 1, shard, rng.randint(0, shard)])]
    for m in range(2, n + 1):
        low, high = unions[-1], min(shard, m * unions[0])
        unions.append(rng.choice([low, high, rng.randint(low, high)]))
    unit: Literal["row", "element"] = rng.choice(("row", "element"))
    form: Literal["coo", "dense"] = rng.choice(("coo", "dense"))
    size = rng.choice([1, 2, 256])
    most = ceil(ceil(shard / n) / size)
    push = rng.randint(0, most)
    return SparseGradient(
        name=name,
        form=form,
        unit=unit,
        units=units,
        width=1 if unit == "element" else rng.choice([1, 16, 100]),
        occurrences=unions[0] * rng.randint(1, 5),
        unions=tuple(unions),
        even=tuple(rng.randint(-(-union // n), union) for union in unions),
        hashed=tuple(rng.randint(-(-union // n), union) for union in unions),
        densest=rng.randint(unions[0], shard),
        blocks=rng.choice([None, BlockCounts(size=size, push=push, pull=rng.randint(push, most))]),
    )


def random_problem(rng: random.Random, machines: int | None = None, devices: int | None = None) -> SparseProblem:
    """Up to three gradients on up to 17 machines; zeros among the rates are common."""
    n = machines or rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 17])
    g = devices or rng.choice([1, 1, 2, 3])
    rates = {rate: rng.choice([0.0, 0.1, rng.random()]) for rate in SparseWork.__struct_fields__}
    return SparseProblem(
        version=VERSION,
        name="random",
        machines=n,
        devices=g,
        gradients=tuple(random_gradient(rng, f"emb{at}", n, g) for at in range(rng.randint(1, 3))),
        intra=GradientLink(alpha_us=rng.choice([0, 0.3]), beta_us_per_MB=rng.choice([30, 100.7])),
        inter=GradientLink(alpha_us=rng.choice([0, 0.7, 50]), beta_us_per_MB=rng.choice([0, 100.3, 900])),
        work=SparseWork(**rates),
    )
