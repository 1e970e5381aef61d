"""What each rank does while the collectives of compression plans are measured, in groups of one scope at the same
time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import distributed

from treadle.planner.documents.compression_costs import Routine, Scope
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes.compression.payload import sent_bytes
from treadle.probe.call_timer import PASSES, CallTimer
from treadle.runtime.compression.routines import ROOT, ROUTINES, SUMS, result_elements, run
from treadle.runtime.scope_groups import ScopeGroups

SIZES = tuple(4096 << 2 * step for step in range(8))
"""Bytes that each rank brings: 4 KiB to 64 MiB."""
LONGEST_NS = 1e8
"""A size whose call takes longer is the last one."""
MOST_BYTES = 256 << 20
"""Bytes of the largest results, to spare memory."""
IN_PLACE = frozenset(("allreduce", "broadcast"))


class RoutineSeries(NamedTuple):
    """A collective at as many ranks."""

    routine: Routine
    scope: Scope
    ranks: int


def measured_routines(
    groups: ScopeGroups, timer: CallTimer, on_step: Callable[[str], None], largest: int | None = None
) -> dict[RoutineSeries, dict[int, float]]:
    """Ns by collective and the bytes that each rank brings, up to the first size from `largest` on; all groups of a
    scope work at the same time."""
    found: dict[RoutineSeries, dict[int, float]] = {}
    steps = PASSES * collectives(groups)
    for number, (scope, routine) in enumerate(steps):
        on_step(f"{number}/{len(steps)} collectives: {routine}, {scope}")
        group = groups.of(scope)
        by_size = found.setdefault(RoutineSeries(routine, scope, distributed.get_world_size(group)), {})
        for size, ns in _times(routine, group, timer, largest or MOST_BYTES):
            by_size[size] = min(ns, by_size.get(size, ns))
    return found


def _times(routine: Routine, group: Any, timer: CallTimer, largest: int) -> Iterator[tuple[int, float]]:
    """Bytes and ns, up to a size that takes long."""
    ranks = distributed.get_world_size(group)
    dtype = torch.float32 if routine in SUMS else torch.uint8
    for size in SIZES:
        elements = -(-size // (4 * ranks)) * 4 * ranks // dtype.itemsize
        source = torch.ones(elements, dtype=dtype, device=timer.device)
        out = source if routine in IN_PLACE else _result(routine, group, source)
        ns = timer.ns(partial(run, routine, group, source, out))
        yield source.nbytes, ns
        if ns > LONGEST_NS or size >= largest or 4 * ranks * source.nbytes > MOST_BYTES:
            break


def _result(routine: Routine, group: Any, source: torch.Tensor) -> torch.Tensor | None:
    """Where this rank gets a result, None on one that gets none."""
    ranks, is_root = distributed.get_world_size(group), distributed.get_rank(group) == ROOT
    if routine in ("reduce", "gather") and not is_root:
        return None
    return source.new_empty(result_elements(routine, source.numel(), ranks))


def issue_times(
    groups: ScopeGroups, timer: CallTimer, sizes: Iterable[int], on_step: Callable[[str], None]
) -> dict[int, float]:
    """Ns that an allreduce of all ranks takes of what they compute, by the bytes that a rank sends where each brings
    `sizes`, ascending; none on GPUs, where the host has nothing else to do."""
    found: dict[int, float] = {}
    if timer.device.type == "cuda":
        return found
    ranks = distributed.get_world_size()
    for size in sizes:
        on_step(f"what collectives take of computing, {format_bytes(size)}")
        vector = torch.ones(size // 4)
        call = partial(run, "allreduce", groups.flat, vector, vector)
        sent = sent_bytes("allreduce", ranks, vector.nbytes)
        found[sent] = max([*found.values(), timer.delay_ns(call)])
    return found


def collectives(groups: ScopeGroups) -> list[tuple[Scope, Routine]]:
    """Those inside nodes and between them only where there are both."""
    scopes: tuple[Scope, ...] = ("flat", "intra", "inter") if groups.intra and groups.inter else ("flat",)
    return [(scope, routine) for scope in scopes for routine in ROUTINES]
