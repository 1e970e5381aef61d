"""The best schedule by size: one search, prices for every size, and where the winner changes (CoCoNet, section 6.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.nearest import meant
from treadle.planner.errors import InputError
from treadle.planner.machine.rates import Machine, machine_of
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.ranking import (
    DEFAULTS,
    PRICES,
    SEARCH,
    FusionOptions,
    Ranking,
    Space,
    TimeShare,
    rank,
    search,
    useful,
)
from treadle.planner.search.clock import Clock


@dataclass(frozen=True)
class Crossover:
    """From extent `at` of dimension `dim` on, `above` takes less time than `below`."""

    dim: str
    at: int
    below: str
    above: str


@dataclass(frozen=True)
class Sweep:
    """One plan for each size, in the order given."""

    plans: tuple[Ranking, ...]
    crossovers: tuple[Crossover, ...]


def sweep(
    program: Program,
    bindings: Bindings,
    dim: str,
    extents: Sequence[int],
    machine: Hardware | Machine,
    *,
    options: FusionOptions = DEFAULTS,
    clock: Clock | None = None,
) -> Sweep:
    """Plans for these extents of one dimension, all else as in `bindings`, and the extents at which winners change.

    A change is that between the winners of two neighbours, to the element; another schedule may win in between. When
    `clock` has expired, schedules are left out as in `rank_schedules`, and changes stay where they are known to lie.

    Raises InputError for extents that do not ascend, or a dimension that stands for several tensors.
    """
    if dim not in bindings.extents:
        raise InputError(f"found dimension {dim!r}, {meant(dim, sorted(bindings.extents))}")
    if dim in bindings.parts:
        raise InputError(f"found dimension {dim!r} of several tensors, expected one that has no parts")
    if not extents or any(a >= b for a, b in pairwise(extents)):
        raise InputError(f"found extents {list(extents)}, expected ascending ones")
    machine = machine_of(machine) if isinstance(machine, Hardware) else machine
    clock = clock or Clock()
    with clock.listening():
        whole = TimeShare.of(clock, SEARCH + PRICES)
        looking = TimeShare.of(clock, SEARCH)
        space = search(program, options.allowed or useful(program), options, looking)

        def at(extent: int, among: Space, over: TimeShare) -> Ranking:
            sized = replace(bindings, extents={**bindings.extents, dim: extent})
            ranked = rank(among, sized, machine, over)
            return Ranking(among, sized, machine, ranked, clock, looking.fired or over.fired)

        plans = {
            extent: at(extent, space, TimeShare(whole.clock.share(len(extents) - place)))
            for place, extent in enumerate(extents)
        }
        return Sweep(tuple(plans.values()), _crossovers(dim, plans, lambda size, few: at(size, few, whole), whole))


def _crossovers(
    dim: str, plans: dict[int, Ranking], at: Callable[[int, Space], Ranking], over: Callable[[], bool]
) -> tuple[Crossover, ...]:
    space = next(iter(plans.values())).space
    crossovers = []
    for low, high in pairwise(plans):
        below, above = plans[low].chosen.name, plans[high].chosen.name
        if below == above:
            continue
        two = space.among(plans[low].chosen.found, plans[high].chosen.found)
        while high - low > 1 and not over():
            middle = (low + high) // 2
            if at(middle, two).chosen.name == below:
                low = middle
            else:
                high = middle
        crossovers.append(Crossover(dim, high, below, above))
    return tuple(crossovers)
