"""What the search of placements adds to groups and a ring, and how long planning takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TypeVar

from msgspec.structs import replace

from benchmarks.checkpoint.papers import GPT2_100B
from benchmarks.common import Row, Table, progress
from treadle.planner.passes.checkpoint.few_sets import least_sets
from treadle.planner.passes.checkpoint.placement import Holders, published
from treadle.planner.passes.checkpoint.planning import plan_checkpoint
from treadle.planner.passes.checkpoint.problem import CheckpointProblem
from treadle.planner.passes.checkpoint.recovery import complete_everywhere, recover
from treadle.planner.passes.checkpoint.search import kept, searched

T = TypeVar("T")
LEFT_OVER = ((5, 3), (7, 4), (8, 3), (8, 5), (9, 4), (11, 3), (14, 4), (12, 8), (23, 8), (1001, 3))
RACKS = ((16, 2, 4), (96, 2, 8), (1000, 2, 8), (1000, 3, 8), (4096, 2, 32))
TIMED = ((16, 2, 0), (1000, 2, 0), (1000, 3, 0), (1000, 2, 8), (1001, 3, 8), (4096, 2, 0), (4096, 3, 32))


def tables() -> Iterator[Table]:
    """Sets of machines and racks that no state survives, published and searched; times of planning and recovery."""
    progress("placements")
    yield Table("Machines that groups leave over: fatal sets of as many machines as copies", list(_left_over()))
    yield Table("Machines in racks: racks, and pairs of them, whose loss is fatal", list(_racks()))
    progress("times")
    yield Table("Time of planning and of a recovery plan", [_times(*size) for size in TIMED])


def in_racks(machines: int, copies: int, rack: int) -> CheckpointProblem:
    """The problem with `rack` machines in each rack, 0 for none."""
    domains = tuple(machine // rack for machine in range(machines)) if rack else ()
    return replace(GPT2_100B, machines=machines, copies=copies, domains=domains)


def _left_over() -> Iterator[Row]:
    for machines, copies in LEFT_OVER:
        problem = in_racks(machines, copies, 0)
        groups, found = _distinct(published(machines, copies)[1]), _distinct(searched(problem))
        yield {
            "machines": machines,
            "copies": copies,
            "groups and ring": groups,
            "searched": found,
            "no placement below": least_sets(machines, copies),
        }


def _distinct(holders: Holders) -> int:
    return len(set(map(frozenset, holders)))


def _racks() -> Iterator[Row]:
    for machines, copies, rack in RACKS:
        problem = in_racks(machines, copies, rack)
        count = len(set(problem.domains))
        row: Row = {"machines": machines, "copies": copies, "racks": count, "pairs": count * (count - 1) // 2}
        for name, holders in (("published", published(machines, copies)[1]), ("searched", searched(problem))):
            one, two, *_ = kept(problem, holders)
            row |= {f"{name}: fatal racks": count - one, f"{name}: fatal pairs": row["pairs"] - two}
        yield row


def _times(machines: int, copies: int, rack: int) -> Row:
    problem = in_racks(machines, copies, rack)
    planning, plan = _timed(lambda: plan_checkpoint(problem))
    holders = plan.decisions.holders
    live = dict.fromkeys(range(1, machines), 8)
    recovery, _ = _timed(lambda: recover({0}, holders, complete_everywhere(holders, live)))
    return {
        "machines": machines,
        "copies": copies,
        "racks of": rack or None,
        "placement": plan.decisions.placement,
        "planning, s": planning,
        "recovery plan, s": recovery,
    }


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    began = perf_counter()
    found = work()
    return perf_counter() - began, found
