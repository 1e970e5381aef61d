"""Simulated annealing of orders, whose neighbours are priced many at a time.

Of the neighbours that are priced together, the first one that is accepted is taken and those after it are not looked
at, so the result is that of trying one after the other. A sum of maxima is flat: means of the same hops, which every
move changes, count next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.ranks.exchanges import Exchanges
from treadle.planner.passes.ranks.problem import Objective
from treadle.planner.search.clock import Expired

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
BATCH = 64
COLD = 1e-2
"""Last temperature over the first one."""
SAMPLES = 512
"""Random neighbours that temperatures are measured by."""


class Heat(NamedTuple):
    """`smooth`: what means count next to maxima. `first`: the first temperature over what random neighbours differ by;
    below zero the dearest order is looked for."""

    smooth: float
    first: float


def anneal(
    energies: Callable[[Ints], Floats],
    start: Sequence[int],
    moves: int,
    heat: Heat,
    generator: np.random.Generator,
    offer: Callable[[Sequence[int]], None],
    stopped: Expired,
) -> None:
    """Offer ever better orders: `moves` neighbours of the current one are priced by `energies` of orders [B, N]."""
    current = np.array(start, dtype=np.int64)
    energy = best = float(energies(current[None])[0])
    samples = energies(_neighbours(current, SAMPLES, generator))
    hot = abs(heat.first) * float(np.abs(samples - energy).mean())
    done = 0
    while done < moves and not stopped():
        tried = _neighbours(current, BATCH, generator)
        found = energies(tried)
        at = _first_accepted(found, energy, hot * COLD ** (done / moves), generator)
        done += BATCH if at is None else at + 1
        if at is None:
            continue
        current, energy = tried[at], float(found[at])
        if energy < best:
            best = energy
            offer(current.tolist())


def anneal_rounds(
    rounds: Exchanges,
    objective: Objective,
    moves: int,
    heat: Heat,
    generator: np.random.Generator,
    offer: Callable[[Sequence[int]], None],
    stopped: Expired,
) -> None:
    """Offer ever better orders: `moves` exchanges of two hosts, half of them with one in the dearest group of a round,
    are priced in `rounds`."""
    sign = 1 if heat.first > 0 else -1
    groups = rounds.group.max(axis=1)[:, None] + 1

    def energies(maxima: Ints, totals: Ints) -> Floats:
        dearest = maxima.max(axis=0) if objective == "bottleneck" else maxima.sum(axis=0)
        energy: Floats = sign * (dearest + heat.smooth * (totals / groups).sum(axis=0))
        return energy

    def exchanges(number: int) -> Ints:
        pairs = generator.integers(0, rounds.group.shape[1], (number, 2))
        in_round = generator.integers(0, len(rounds.group), number // 2)
        pairs[::2, 0] = (rounds.member[in_round] + generator.random((len(in_round), 1))).argmax(axis=1)
        return pairs

    current = rounds.highest[:, :1]
    energy = float(energies(current, rounds.totals[:, None])[0])
    samples = energies(*rounds.priced(*exchanges(SAMPLES).T))
    hot = abs(heat.first) * float(np.abs(samples - energy).mean())
    least, done = np.inf, 0
    while done < moves and not stopped():
        pairs = exchanges(BATCH)
        maxima, totals = rounds.priced(*pairs.T)
        found = energies(maxima, totals)
        at = _first_accepted(found, energy, hot * COLD ** (done / moves), generator)
        done += BATCH if at is None else at + 1
        if at is None:
            continue
        rounds.exchange(*pairs[at].tolist())
        energy = float(found[at])
        cost = sign * float(maxima[:, at].max() if objective == "bottleneck" else maxima[:, at].sum())
        if cost <= least:
            least = cost
            offer(rounds.order.tolist())


def _first_accepted(found: Floats, energy: float, temperature: float, generator: np.random.Generator) -> int | None:
    allowed = energy - temperature * np.log1p(-generator.random(len(found)))
    accepted = np.flatnonzero(found <= allowed)
    return int(accepted[0]) if len(accepted) else None


def _neighbours(order: Ints, batch: int, generator: np.random.Generator) -> Ints:
    """Orders [batch, N]: in turn with two places exchanged, a segment reversed, and a segment rotated."""
    places = np.arange(len(order))
    first, middle, last = np.sort(generator.integers(0, len(order), (3, batch, 1)), axis=0)
    kind = np.arange(batch)[:, None] % 3
    inside = (places >= first) & (places <= last)
    exchanged = np.where(places == first, last, np.where(places == last, first, places))
    rotated = first + (places + middle - 2 * first) % (last - first + 1)
    moved = np.where(kind == 1, first + last - places, rotated)
    return order[np.where(kind == 0, exchanged, np.where(inside, moved, places))]
