"""How long an exchange takes from the times of its parts: the slowest one, and what fills it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from treadle.planner.passes.server.decisions import PartLoad
from treadle.planner.passes.server.layout import ServerLayout
from treadle.planner.passes.server.prices import (
    COMPUTATION,
    server_parts,
    shared_parts,
    slowest,
    time_of,
    work_of,
    worker_parts,
)
from treadle.planner.passes.server.problem import Engine, ServerProblem


class ExchangeTimes(NamedTuple):
    fill_ns: int
    time_ns: int
    iteration_ns: int


def times_of(layout: ServerLayout, parts: Sequence[PartLoad], engine: Engine) -> ExchangeTimes:
    """The exchange of all workers, and a step with its computation."""
    problem, fill = layout.problem, fill_of(layout)
    exchange = exchange_of(layout, parts)
    if engine == "wide":
        exchange = max(exchange, lock_step_of(layout, parts))
    step = step_of(problem, exchange, fill) if problem.synchronous else exchange + fill
    return ExchangeTimes(fill, exchange + fill, max(step, problem.compute_ns))


def exchange_of(layout: ServerLayout, parts: Sequence[PartLoad]) -> int:
    """The slowest part; with two levels those inside racks, and what goes between racks after that."""
    problem = layout.problem
    if not layout.two_level:
        return max((each.time_ns for each in parts if each.part != COMPUTATION), default=0)
    inside = [server_parts(layout, server, cross=False) for server in range(problem.servers)]
    shared = [each for each in shared_parts(layout) if each.part != "rack link"]
    local = max(*map(slowest, inside), slowest([*worker_parts(layout), *shared]))
    rate = min(problem.core_rate or 1, sum(each.rate for each in problem.machine.interfaces))
    return local + time_of(max(map(layout.between_racks, range(problem.servers))), rate)


def fill_of(layout: ServerLayout) -> int:
    """What the longest chunk takes on its own: messages, the two links that it passes, and its core."""
    problem, longest = layout.problem, layout.longest
    work = problem.machine.work
    fill = (4 if layout.two_level else 2) * problem.latency_ns
    if problem.worker_rate is not None:
        fill += time_of(longest, problem.worker_rate)
    if problem.carrier != "shared":
        fill += time_of(longest, min(each.rate for each in problem.machine.interfaces))
    each = layout.local * (work.receive_ns_per_MB + work.add_ns_per_MB + work.send_ns_per_MB)
    return fill + work_of(longest * (each + work.optimize_ns_per_MB)) + layout.local * work.message_ns


def lock_step_of(layout: ServerLayout, parts: Sequence[PartLoad]) -> int:
    """When a team of all cores has done the last key: one after the other, each once all of it has come."""
    problem, work = layout.problem, layout.problem.machine.work
    total, before, done = problem.bytes, 0, 0
    network = slowest([each for each in parts if on_network(each.part)])
    cores = layout.cores * (1 if layout.two_level else problem.servers)
    for key in problem.keys:
        before += key.bytes
        numerator = key.bytes * (layout.local * work.add_ns_per_MB + work.optimize_ns_per_MB)
        done = max(-(-network * before // total), done) - (-numerator // ((1 << 20) * cores))
    return done


def on_network(name: str) -> bool:
    """Whether a part carries what has not reached memory yet."""
    first = name.split(" ")[0]
    return first in ("interface", "slot") or name in ("bridge", "between domains", "worker link", "rack link")


def step_of(problem: ServerProblem, exchange: int, fill: int) -> int:
    """The end of the last key: the exchange takes keys in their order, none before it is ready."""
    before = accumulate((key.bytes for key in problem.keys), initial=0)
    total = problem.bytes
    ends = (
        key.ready_ns + exchange - -(-exchange * sent // total) for key, sent in zip(problem.keys, before, strict=False)
    )
    return max(ends) + fill
