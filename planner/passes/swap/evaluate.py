"""The simulated time of a plan, and the plan as a document."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
from msgspec import structs

from treadle.planner.passes.swap.arrays import COMPUTE, IN, KINDS, OUT, Arrays, Ints, Nodes
from treadle.planner.passes.swap.decisions import Allocator, Resident, SwapDecisions, SwapNode
from treadle.planner.passes.swap.layout import Pool, laid_out
from treadle.planner.passes.swap.problem import SwapProblem
from treadle.planner.passes.swap.replay import replay
from treadle.planner.passes.swap.timeline_of import MEMORY, start_bytes, tasks_of
from treadle.planner.timeline.simulator import simulate


def time_ns(arrays: Arrays, nodes: Nodes) -> int | None:
    """Nanoseconds of one iteration; None where the tensors that are copied do not fit into the host's memory."""
    if 0 <= arrays.host_bytes < pinned_bytes(arrays, nodes):
        return None
    return replay(arrays, nodes).makespan_ns


def pinned_bytes(arrays: Arrays, nodes: Nodes) -> int:
    """Bytes of all copied tensors; each has a place of its own on the host."""
    copied = np.zeros(len(arrays.bytes), np.bool_)
    copied[nodes.item[(nodes.kind == IN) | (nodes.kind == OUT)]] = True
    return int(arrays.bytes[copied].sum())


def decisions(
    problem: SwapProblem,
    arrays: Arrays,
    order: Sequence[int],
    nodes: Nodes,
    pool: Pool | None,
    allocator: Allocator = "pool",
    early: Collection[int] = (),
) -> SwapDecisions:
    """Nodes as a document, with the figures of the simulation (treadle.planner.timeline.simulator). The copies out at
    the places `early` leave their tensor on the device."""
    item, moved = nodes.item, np.append(arrays.bytes, 0)[np.where(nodes.kind == COMPUTE, -1, nodes.item)]
    bare = SwapDecisions(
        problem=problem,
        allocator=allocator,
        order=tuple(map(int, order)),
        pool=laid_out(arrays.sizes, pool) if pool else (),
        class_of=pool.classes if pool else (),
        initial=_residents(nodes.initial, nodes.initial_at),
        final=_residents(nodes.initial, nodes.final_at),
        nodes=tuple(
            SwapNode(kind=KINDS[kind], item=item, serves=serves, after=after, at=at, early=place in early)  # type: ignore[arg-type]
            for place, (kind, item, serves, after, at) in enumerate(
                zip(
                    nodes.kind.tolist(),
                    item.tolist(),
                    nodes.serves.tolist(),
                    _lists(nodes.after_ptr, nodes.after),
                    _lists(nodes.at_ptr, nodes.at),
                    strict=True,
                )
            )
        ),
        time_ns=0,
        idle_ns=0,
        in_bytes=int(moved[nodes.kind == IN].sum()),
        out_bytes=int(moved[nodes.kind == OUT].sum()),
        peak_bytes=0,
    )
    schedule = simulate(*tasks_of(bare), start_bytes(bare))
    return structs.replace(
        bare,
        time_ns=schedule.makespan,
        idle_ns=schedule.makespan - problem.ideal_ns,
        peak_bytes=schedule.peak.get(MEMORY, 0),
    )


def _residents(tensors: Ints, at: Ints) -> tuple[Resident, ...]:
    return tuple(
        Resident(tensor=tensor, at=address)
        for tensor, address in sorted(zip(tensors.tolist(), at.tolist(), strict=True))
    )


def _lists(ptr: Ints, values: Ints) -> list[tuple[int, ...]]:
    flat, ends = values.tolist(), ptr.tolist()
    return [tuple(flat[begin:end]) for begin, end in pairwise(ends)]


def with_figures(decisions: SwapDecisions) -> SwapDecisions:
    """`decisions` with the times and peak of their nodes on their problem."""
    schedule = simulate(*tasks_of(decisions), start_bytes(decisions))
    idle = schedule.makespan - decisions.problem.ideal_ns
    peak = schedule.peak.get(MEMORY, 0)
    return structs.replace(decisions, time_ns=schedule.makespan, idle_ns=idle, peak_bytes=peak)
