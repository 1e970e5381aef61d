"""What ranks report, what the first rank answers, and when all of them act on it: the side channel of Autotune.

Every `period` iterations each rank sends what it measured. The first rank decides while the next iteration runs, and
sends its answer after that one; so all ranks change their plan before the same iteration, and no sum is of two plans.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import isnan, nan
from statistics import median
from typing import Any, NamedTuple, Protocol

import msgspec
import torch
from torch import distributed

from treadle.aggregate.links import LinkReport
from treadle.planner.documents.scalars import Record
from treadle.planner.passes.aggregation.decisions import AggregationDecisions

LEADER = 0
log = logging.getLogger("treadle.aggregate")


class MeasuredCalls(NamedTuple):
    """What the ranks report of iterations under one plan; matrices are by rank, from row to column, NaN where nothing
    was seen."""

    iteration: int
    """How many iterations there were so far."""
    time_ns: float
    """Median time of an iteration on the slowest rank."""
    call_ns: float
    """What of it are sums."""
    bytes_summed: float
    """Bytes of all sums of an iteration on a rank."""
    round_trip_us: list[list[float]]
    bytes_per_second: list[list[float]]


class PlanChange(Record, frozen=True, kw_only=True):
    """The plan from the next iteration on, if another one; or the bytes that each pair of hosts is to exchange now, so
    that the links are measured again."""

    decisions: AggregationDecisions | None = None
    probe_bytes: int | None = None


class PlanDecider(Protocol):
    """Decides on the first rank, on a thread of its own."""

    def decide(self, measured: MeasuredCalls) -> PlanChange: ...

    def regroup(self, bytes_per_second: list[list[float]]) -> PlanChange:
        """After a probe, by its rates from rank to rank."""
        ...


class Reports:
    """The iterations of one rank since its last report, under the plan that it has now."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []

    def clear(self) -> None:
        self.rows.clear()

    def add(self, time_ns: int, call_ns: int, summed: int, links: LinkReport) -> None:
        self.rows.append([time_ns, call_ns, summed, *links.round_trip_us, *links.bytes_per_second])

    def medians(self) -> list[float]:
        """The median of each number over the iterations in which it was seen: a link that has changed for most of them
        shows as it is now."""
        columns = ([value for value in column if not isnan(value)] for column in zip(*self.rows, strict=True))
        return [median(column) if column else nan for column in columns]


class SideChannel:
    """Reports to the first rank of `group`, a group of gloo, and its answers."""

    def __init__(self, group: Any, decider: PlanDecider | None) -> None:
        self.group, self.decider = group, decider
        self.rank, self.ranks = distributed.get_rank(group), distributed.get_world_size(group)
        self.worker = ThreadPoolExecutor(1, "treadle-autotune") if self.rank == LEADER else None
        self.deciding: Future[PlanChange] | None = None

    def report(self, iteration: int, numbers: list[float]) -> None:
        """Send what this rank measured; on the first rank, begin to decide."""
        rows = self._gathered(numbers)
        if rows is not None:
            self._decide(lambda decider: decider.decide(_measured(iteration, rows)))

    def report_probe(self, bytes_per_second: list[float]) -> None:
        rows = self._gathered(bytes_per_second)
        if rows is not None:
            self._decide(lambda decider: decider.regroup(rows))

    def answer(self) -> PlanChange:
        """What the first rank decided, on all ranks: nothing where it could not decide."""
        text = b""
        if self.deciding is not None:
            text, self.deciding = msgspec.json.encode(_decided(self.deciding)), None
        size = torch.tensor([len(text)])
        distributed.broadcast(size, group=self.group, group_src=LEADER)
        body = torch.empty(int(size), dtype=torch.uint8)
        if text:
            body = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        distributed.broadcast(body, group=self.group, group_src=LEADER)
        return msgspec.json.decode(body.numpy().tobytes(), type=PlanChange)

    def close(self) -> None:
        if self.worker is not None:
            self.worker.shutdown(wait=True, cancel_futures=True)

    def _gathered(self, numbers: list[float]) -> list[list[float]] | None:
        """The numbers of all ranks, on the first."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(self.ranks)] if self.rank == LEADER else None
        distributed.gather(mine, rows, group=self.group, group_dst=LEADER)
        return None if rows is None else [row.tolist() for row in rows]

    def _decide(self, work: Callable[[PlanDecider], PlanChange]) -> None:
        assert self.worker is not None
        assert self.decider is not None
        self.deciding = self.worker.submit(work, self.decider)


def _measured(iteration: int, rows: list[list[float]]) -> MeasuredCalls:
    time_ns, call_ns, summed = (max(row[place] for row in rows) for place in range(3))
    trips, rates = [row[3 : 3 + len(rows)] for row in rows], [row[3 + len(rows) :] for row in rows]
    return MeasuredCalls(iteration, time_ns, call_ns, summed, trips, rates)


def _decided(deciding: Future[PlanChange]) -> PlanChange:
    try:
        return deciding.result()
    except Exception as error:  # the job goes on with the plan that it has
        log.warning(f"autotune could not decide: {type(error).__name__}: {' '.join(str(error).split())}")
        return PlanChange()
