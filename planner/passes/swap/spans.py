"""Plans for memory without classes: allocator `bytes`, one count, and allocator `offset`, addresses.

`bytes` models allocators with virtual memory (expandable segments); `offset` one block of memory in which every tensor
is contiguous. Both passes are those of treadle.planner.passes.swap.two_pass. With `offset` an initial resident has to
end at the address where it started.

For `offset` the faster of two plans is taken: one planned by bytes and packed (packing.py), with fewer bytes until it
packs; and one whose addresses are assigned during the scan (span_scan.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from treadle.planner.passes.swap.arrays import Arrays, Flags, Ints, Nodes, ints
from treadle.planner.passes.swap.packing import packed
from treadle.planner.passes.swap.replay import replay
from treadle.planner.passes.swap.scan import next_uses
from treadle.planner.passes.swap.span_scan import SpanScanResult, span_scan
from treadle.planner.passes.swap.two_pass import Settings

SPANS = Settings(keep_initial=True)
ROUNDS = 8
"""Rounds of pass 2 before the initial residents are halved."""
STEPS = 5
"""Amounts of bytes with which `offset` plans."""
CLOSE = 0.005
"""Share of the memory by which a further step must differ."""


class Packed(NamedTuple):
    """A plan for allocator `offset`, and the bytes with which it was planned if it was packed."""

    nodes: Nodes
    room: int | None


def plan_spans(
    arrays: Arrays,
    order: Sequence[int] | Ints,
    room: int,
    allocator: Literal["bytes", "offset"],
    settings: Settings = SPANS,
    bias: Ints | None = None,
) -> Nodes | None:
    """The plan of both passes in `room` bytes; None if some operator does not fit, or finds no hole.

    order: all operators, topological. bias: per use, added to the next use where victims are compared.
    """
    if allocator == "bytes":
        return scan_spans(arrays, order, room, False, settings, bias)
    found = pack_spans(arrays, order, room, settings, bias)
    return found.nodes if found else None


def pack_spans(
    arrays: Arrays,
    order: Sequence[int] | Ints,
    room: int,
    settings: Settings = SPANS,
    bias: Ints | None = None,
    count: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Packed | None:
    """The faster plan for allocator `offset`, packed or with addresses of the scan; `stop` ends the packing.

    count: bytes with which packing begins, if packed plans are known to be faster; the scan is then tried only if none
    packs. By default packing begins with all of `room`.
    """
    found = _packed(arrays, order, room, count or room, settings, bias, stop)
    if not found or count is None:
        scanned = scan_spans(arrays, order, room, True, settings, bias)
        found += [] if scanned is None else [Packed(scanned, None)]
    return min(found, key=lambda one: replay(arrays, one.nodes).makespan_ns, default=None)


def _packed(
    arrays: Arrays,
    order: Sequence[int] | Ints,
    room: int,
    count: int,
    settings: Settings,
    bias: Ints | None,
    stop: Callable[[], bool],
) -> list[Packed]:
    """Plans by bytes that pack into `room`: with fewer bytes in proportion to the height of the packing, then, once one
    has packed, by bisection."""
    found: list[Packed] = []
    low, high = 0, room + 1
    for _ in range(STEPS):
        nodes = None if stop() else scan_spans(arrays, order, count, False, settings, bias)
        if nodes is None:
            break
        addressed, height = packed(arrays, nodes, room, stop)
        if addressed is not None:
            found.append(Packed(addressed, count))
            low = count
        else:
            high = count
        if low and high - low < CLOSE * room:
            break
        count = (low + high) // 2 if low else min(high - 1, count * room // height)
    return found


def scan_spans(
    arrays: Arrays,
    order: Sequence[int] | Ints,
    room: int,
    addressed: bool,
    settings: Settings,
    bias: Ints | None = None,
) -> Nodes | None:
    """The plan of both passes: by one count of bytes, or with addresses assigned during the scan."""
    planner = _Spans(arrays, order, room, addressed, settings.threshold, bias)
    first = planner.run(ints(()), planner.nothing, False)
    if first is None:
        return None
    plans = [planner.steady(first, removing) for removing in ((True, False) if settings.keep_initial else (True,))]
    return _fastest(arrays, plans)


def _fastest(arrays: Arrays, plans: Sequence[Nodes | None]) -> Nodes | None:
    found = [plan for plan in plans if plan is not None]
    return min(found, key=lambda nodes: replay(arrays, nodes).makespan_ns, default=None)


class _Spans:
    """Inputs that all passes over one order share."""

    def __init__(
        self, arrays: Arrays, order: Sequence[int] | Ints, room: int, addressed: bool, threshold: int, bias: Ints | None
    ) -> None:
        self.arrays, self.room, self.addressed, self.threshold = arrays, room, addressed, threshold
        self.order = np.asarray(order, np.int64)
        self.following, self.first = next_uses(arrays, self.order)
        self.nothing = np.zeros(len(arrays.use), np.bool_)
        self.bias = np.zeros(len(arrays.use), np.int64) if bias is None else bias
        self.at = np.zeros(len(arrays.bytes), np.int64)
        """Where initial residents start."""

    def run(self, initial: Ints, known: Flags, removing: bool) -> SpanScanResult | None:
        initial = initial[np.argsort(-self.first[initial], kind="stable")]
        found = span_scan(
            self.arrays,
            self.order,
            self.following,
            self.first,
            self.bias,
            self.room,
            self.addressed,
            self.threshold,
            initial,
            self.at[initial],
            known,
            removing,
        )
        return found if found.feasible else None

    def steady(self, first: SpanScanResult, removing: bool) -> Nodes | None:
        """Pass 2 from the residents of pass 1, with fewer of them until all are resident again at the end; half as many
        in each round after the first ROUNDS."""
        self.at = first.at
        carried = first.resident & self.arrays.persistent & (self.arrays.bytes > 0)
        rounds = 0
        while True:
            initial = np.flatnonzero(carried)
            found = self.run(initial, first.pressure, removing)
            rounds += 1
            stays = carried if found is None else carried & ~found.removed & found.resident & (found.at == self.at)
            if found is not None and (stays == carried).all():
                return found.nodes
            if found is None and not len(initial):
                return None
            if found is not None and found.removed.any():
                stays = carried & ~found.removed
            if found is None or rounds > ROUNDS:
                fewer = np.flatnonzero(stays)
                stays = np.zeros_like(carried)
                stays[fewer[: len(initial) // 2]] = True
            carried = stays
