"""Simulated annealing of orders, whose neighbours are priced many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Energies = Callable[[Ints], Floats]
"""Of orders [B, N]: what is to be small [B]."""
BATCH = 32
"""Neighbours that are priced together: those after the first accepted one are not looked at."""
COLD = 1e-3
"""Last temperature over the first one."""


class Annealed(NamedTuple):
    order: Ints
    energy: float


def anneal(
    energies: Energies, start: Sequence[int], moves: int, generator: np.random.Generator, stopped: Callable[[], bool]
) -> Annealed:
    """The best order found with `moves` neighbours of the current one, from `start` on: two places exchanged, a segment
    reversed or moved. The temperature falls from what random neighbours differ by."""
    current = np.array(start, dtype=np.int64)
    energy = best_energy = float(energies(current[None])[0])
    best = current
    hot = float(np.abs(energies(_neighbours(current, 2 * BATCH, generator)) - energy).mean()) / 2
    done = 0
    while done < moves and len(current) > 1 and not stopped():
        temperature = hot * COLD ** (done / moves)
        tried = _neighbours(current, BATCH, generator)
        found = energies(tried)
        allowed = energy - temperature * np.log1p(-generator.random(BATCH))
        accepted = np.flatnonzero(found <= allowed)
        if not len(accepted):
            done += BATCH
            continue
        done += int(accepted[0]) + 1
        current, energy = tried[accepted[0]], float(found[accepted[0]])
        if energy < best_energy:
            best, best_energy = current, energy
    return Annealed(best, best_energy)


def _neighbours(order: Ints, batch: int, generator: np.random.Generator) -> Ints:
    """Orders [batch, N]: in turn with two places exchanged, a segment reversed, a segment moved."""
    count = len(order)
    places = np.arange(count)
    ends = np.sort(generator.integers(0, count, (batch, 3, 1)), axis=1)
    first, middle, last = ends[:, 0], ends[:, 1], ends[:, 2]
    inside = (places >= first) & (places <= last)
    source = np.broadcast_to(places, (batch, count)).copy()
    rows = np.arange(batch)
    kind = rows % 3
    reverse = (kind == 1)[:, None] & inside
    source = np.where(reverse, first + last - places, source)
    rotate = (kind == 2)[:, None] & inside
    size = last - first + 1
    source = np.where(rotate, first + (places - first + middle - first + 1) % size, source)
    pairs = generator.integers(0, count, (batch, 2))
    for a, b in ((0, 1), (1, 0)):
        source[rows[kind == 0], pairs[kind == 0, a]] = pairs[kind == 0, b]
    return order[source]
