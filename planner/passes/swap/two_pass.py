"""The repeatable swap plan of an order and a pool (SwapAdvisor, section 4.3, "two passes").

The tensors on the device when an iteration ends must be those when it begins. Pass 1 starts with no parameter on the
device; those on it at its end are the initial residents of pass 2. Where a class is full in pass 2 but was not in pass
1, its initial resident of the furthest first use is removed; pass 2 is repeated until none is removed and all initial
residents are on the device again at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treadle.planner.passes.swap.arrays import Arrays, Flags, Ints, Nodes, ints
from treadle.planner.passes.swap.layout import Pool, class_of_tensor, laid_out
from treadle.planner.passes.swap.replay import replay
from treadle.planner.passes.swap.scan import ScanResult, next_uses, scan


class Settings(NamedTuple):
    """threshold: a victim was last used more than this many operators before, if possible. keep_initial: also plan
    without removals, so that initial residents are evicted like other tensors, and take the faster plan. newest:
    outputs take the object that was freed last and leave the others to copies in, which can be early."""

    threshold: int = 2
    keep_initial: bool = False
    newest: bool = False


FAITHFUL = Settings()
"""As SwapAdvisor has it."""
REFINED = Settings(newest=True)


def plan_pool(
    arrays: Arrays,
    order: Sequence[int] | Ints,
    pool: Pool,
    settings: Settings = FAITHFUL,
    bias: Ints | None = None,
    initial: Ints | None = None,
) -> Nodes | None:
    """The plan of both passes; None where a class has fewer objects than some operator holds of its tensors.

    order: all operators, topological. pool: its counts are at least 1. bias: per use, added to the next use where
    victims are compared. initial: initial residents instead of those of pass 1, as far as there are objects for them,
    those of the earliest first use first.
    """
    planner = _Planner(arrays, order, pool, settings, bias)
    if initial is not None:
        return _steady(planner, planner.placed(initial), planner.nothing, False)
    first = planner.run(ints(()), planner.nothing, False)
    if not first.feasible:
        return None
    carried = first.resident & arrays.persistent
    plans = [
        _steady(planner, carried, first.pressure, removing)
        for removing in ((True, False) if settings.keep_initial else (True,))
    ]
    found = [plan for plan in plans if plan is not None]
    return min(found, key=lambda nodes: replay(arrays, nodes).makespan_ns) if len(found) > 1 else found[0]


def plan_once(
    arrays: Arrays,
    order: Sequence[int] | Ints,
    pool: Pool,
    settings: Settings = FAITHFUL,
    initial: Sequence[int] = (),
) -> Nodes | None:
    """The plan of one pass that starts with `initial` on the device, whether or not it ends with them."""
    planner = _Planner(arrays, order, pool, settings)
    found = planner.run(planner.by_first_use(ints(initial)), planner.nothing, False)
    return found.nodes if found.feasible else None


def _steady(planner: _Planner, carried: Flags, known: Flags, removing: bool) -> Nodes | None:
    """Pass 2 from the `carried`, repeated with fewer of them until none is removed and all are kept. The set only
    shrinks, so this ends. None if the pool has no plan."""
    while True:
        initial = planner.by_first_use(np.flatnonzero(carried))
        found = planner.run(initial, known, removing)
        if not found.feasible:
            return None
        if found.removed.any():
            carried = carried & ~found.removed
        elif not found.resident[initial].all():
            carried = carried & found.resident
        else:
            return found.nodes


class _Planner:
    """Inputs that all passes over one order and pool share."""

    def __init__(
        self,
        arrays: Arrays,
        order: Sequence[int] | Ints,
        pool: Pool,
        settings: Settings,
        bias: Ints | None = None,
    ) -> None:
        self.arrays = arrays
        self.order = np.asarray(order, np.int64)
        self.following, self.first = next_uses(arrays, self.order)
        layout = laid_out(arrays.sizes, pool)
        self.class_of = class_of_tensor(arrays, pool)
        self.counts = ints(pool.counts)
        self.sizes = ints(part.object_bytes for part in layout)
        self.base = ints(part.address for part in layout)
        self.settings = settings
        self.bias = np.zeros(len(arrays.use), np.int64) if bias is None else bias
        self.nothing = np.zeros(len(arrays.use), np.bool_)

    def by_first_use(self, tensors: Ints) -> Ints:
        """The furthest first use first, equal ones by number."""
        return tensors[np.argsort(-self.first[tensors], kind="stable")]

    def placed(self, initial: Ints) -> Flags:
        """The tensors for which their classes have objects, those of the earliest first use first."""
        carried = np.zeros(len(self.arrays.bytes), np.bool_)
        left = self.counts.copy()
        for t in self.by_first_use(initial)[::-1].tolist():
            q = self.class_of[t]
            if self.arrays.persistent[t] and (q < 0 or left[q]):
                carried[t] = True
                left[q] -= q >= 0
        return carried

    def run(self, initial: Ints, known: Flags, removing: bool) -> ScanResult:
        return scan(
            self.arrays,
            self.order,
            self.following,
            self.first,
            self.class_of,
            self.counts,
            self.sizes,
            self.base,
            self.bias,
            self.settings.threshold,
            self.settings.newest,
            initial,
            known,
            removing,
        )
