"""The swap plan of an order and a pool that can run again and again (SwapAdvisor, section 4.3, "two passes").

What is on the device when an iteration ends must be what is there when it begins. Pass 1 starts with no parameter on
the device; those that are there at its end are the initial residents of pass 2. Where pass 2 meets pressure that pass 1
did not have, an initial resident of that class gives up its place, the one of the furthest first use; pass 2 is
repeated until nobody has to and all initial residents are on the device again at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.swap.arrays import Arrays, Flags, Ints, Nodes, ints
from planner.swap.layout import Pool, class_of_tensor, laid_out
from planner.swap.replay import replay
from planner.swap.scan import Pass, next_uses, scan


class Settings(NamedTuple):
    """threshold: a victim was last used more than this many operators before, if there is such a one. keep_initial:
    also plan without removals, where an initial resident is evicted like any other tensor, and take what the simulator
    finds faster."""

    threshold: int = 2
    keep_initial: bool = False


FAITHFUL = Settings()
"""As the text has it."""


def plan_pool(arrays: Arrays, order: Sequence[int] | Ints, pool: Pool, settings: Settings = FAITHFUL) -> Nodes | None:
    """The plan of both passes; None where a class has fewer objects than some operator holds of its tensors.

    order: all operators, topological. pool: its counts are at least 1.
    """
    planner = _Planner(arrays, order, pool, settings.threshold)
    first = planner.run(ints(()), planner.nothing, False)
    if not first.feasible:
        return None
    carried = first.resident & arrays.persistent
    plan = _steady(planner, carried, first.pressure, True)
    if not settings.keep_initial:
        return plan
    return min(
        plan, _steady(planner, carried, first.pressure, False), key=lambda nodes: replay(arrays, nodes).makespan_ns
    )


def plan_once(
    arrays: Arrays,
    order: Sequence[int] | Ints,
    pool: Pool,
    settings: Settings = FAITHFUL,
    initial: Sequence[int] = (),
) -> Nodes | None:
    """The plan of one pass that starts with `initial` on the device, which need not be there when it ends."""
    planner = _Planner(arrays, order, pool, settings.threshold)
    found = planner.run(planner.by_first_use(ints(initial)), planner.nothing, False)
    return found.nodes if found.feasible else None


def _steady(planner: _Planner, carried: Flags, known: Flags, removing: bool) -> Nodes:
    """Pass 2 from the `carried` on, repeated with fewer of them until it needs nobody removed and keeps all. The set
    only shrinks, and with none carried nothing is left to remove, so this ends."""
    while True:
        initial = planner.by_first_use(np.flatnonzero(carried))
        found = planner.run(initial, known, removing)
        if found.removed.any():
            carried = carried & ~found.removed
        elif not found.resident[initial].all():
            carried = carried & found.resident
        else:
            return found.nodes


class _Planner:
    """What all passes over one order and pool share."""

    def __init__(self, arrays: Arrays, order: Sequence[int] | Ints, pool: Pool, threshold: int) -> None:
        self.arrays = arrays
        self.order = np.asarray(order, np.int64)
        self.following, self.first = next_uses(arrays, self.order)
        layout = laid_out(arrays.sizes, pool)
        self.class_of = class_of_tensor(arrays, pool)
        self.counts = ints(pool.counts)
        self.sizes = ints(part.object_bytes for part in layout)
        self.base = ints(part.address for part in layout)
        self.threshold = threshold
        self.nothing = np.zeros(len(arrays.use), np.bool_)

    def by_first_use(self, tensors: Ints) -> Ints:
        """The furthest first use first, equal ones by number."""
        return tensors[np.argsort(-self.first[tensors], kind="stable")]

    def run(self, initial: Ints, known: Flags, removing: bool) -> Pass:
        return scan(
            self.arrays,
            self.order,
            self.following,
            self.first,
            self.class_of,
            self.counts,
            self.sizes,
            self.base,
            self.threshold,
            initial,
            known,
            removing,
        )
