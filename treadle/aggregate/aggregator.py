"""Sums over the ranks of a job by an aggregation plan, which may change between two iterations."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from torch import Tensor, distributed

from treadle.aggregate.engine import engine
from treadle.aggregate.links import LinkMeter
from treadle.aggregate.probing import probed
from treadle.aggregate.tuning import PlanDecider, Reports, SideChannel
from treadle.codegen.aggregation.script import ranks_of
from treadle.planner.errors import InputError
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.runtime.agreement import agreed_on, require_same
from treadle.runtime.collective.wire.groups import close_wire, stop_wire, wire_of
from treadle.runtime.torch_names import new_group
from treadle.runtime.watch import watch_of

PERIOD, LEAST_PERIOD = 5, 2
"""Iterations from report to report."""


class AggregationStatistics(NamedTuple):
    """What this rank did so far."""

    iterations: int
    first_iterations: tuple[int, ...]
    """Where each plan began, that of the folder first."""
    times_ns: tuple[int, ...]
    """Times of the iterations."""


class PlannedSums:
    """The sums of one rank. `decider`, if any, decides on the first rank every `period` iterations.

    All ranks make it together. Raises InputError, on all of them alike, for a plan of another number of ranks or
    another plan, period or use of autotune than the first rank, MissingBackendError where one has no compiler.
    """

    def __init__(
        self, decisions: AggregationDecisions, decider: PlanDecider | None = None, period: int = PERIOD
    ) -> None:
        def checked() -> None:
            world, planned = distributed.get_world_size(), ranks_of(decisions)
            if world != planned:
                raise InputError(f"found {world} ranks, expected the plan's {planned}")
            if period < LEAST_PERIOD:
                raise InputError(f"found a period of {period}, expected at least {LEAST_PERIOD} iterations")

        agreed_on(checked, decisions)
        require_same((period, decider is None), "period or autotune")
        self.group: Any = new_group(range(distributed.get_world_size()), backend="gloo")
        self.wire = wire_of(self.group, decisions.problem.connections)
        self.watch = watch_of(self.group, lambda rank: None)
        self.decisions, self.engine = decisions, engine(decisions, self.wire)
        self.meter, self.reports = LinkMeter(self.wire), Reports()
        self.channel = None if decider is None else SideChannel(self.group, decider)
        self.period, self.due = period, period
        self.answers = False
        """Whether an answer of the first rank comes after this iteration."""
        self.times: list[int] = []
        self.first_iterations = [0]
        self.call_ns = self.summed = 0
        self.began = time.perf_counter_ns()
        self.closed = False

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """The sum of `tensor` over all ranks, in place; `op` may also be avg, min or max.

        The same on all ranks bit by bit, in an order that the plan fixes. Raises InputError for tensors that cannot be
        added up and after `close`, CheckFailed with the rank that ended.
        """
        self._require_open()
        start = time.perf_counter_ns()
        result = self.engine(tensor, op=op)
        self.call_ns += time.perf_counter_ns() - start
        self.summed += tensor.numel() * tensor.element_size()
        return result

    def step(self) -> None:
        """An iteration has ended. All ranks call it after the same sums; what they report, and which plan they follow,
        changes here only. Raises CheckFailed with the rank that ended, InputError after `close`."""
        self._require_open()
        time_ns = time.perf_counter_ns() - self.began
        self.times.append(time_ns)
        if self.channel is not None:
            self.reports.add(time_ns, self.call_ns, self.summed, self.meter.take())
        self.call_ns = self.summed = 0
        if self.channel is not None:
            with self.watch.named():
                self._exchange(self.channel)
        self.began = time.perf_counter_ns()

    def statistics(self) -> AggregationStatistics:
        return AggregationStatistics(len(self.times), tuple(self.first_iterations), tuple(self.times))

    def close(self) -> None:
        """End: other ranks do not take the end of this one for a failure. All ranks call it after the same
        iteration."""
        if self.closed:
            return
        self.closed = True
        if self.channel is not None:
            self.channel.close()
        self.watch.close()
        close_wire(self.group)
        distributed.destroy_process_group(self.group)
        del self.channel, self.watch, self.group  # the last references to open files

    def stop(self) -> None:
        """End the sum that another thread may be in."""
        if not self.closed:
            stop_wire(self.group)

    def _require_open(self) -> None:
        if self.closed:
            raise InputError("found a call after `close`, expected none", where="treadle.aggregate")

    def _exchange(self, channel: SideChannel) -> None:
        if self.answers:
            self.answers = False
            answer = channel.answer()
            if answer.decisions is not None:
                self._change(answer.decisions)
            if answer.probe_bytes is not None:
                channel.report_probe(probed(self.group, answer.probe_bytes, self.decisions.problem.hosts[0].slots))
                self.answers = True
        elif len(self.times) >= self.due:
            channel.report(len(self.times), self.reports.medians())
            self.reports.clear()
            self.answers, self.due = True, len(self.times) + self.period

    def _change(self, decisions: AggregationDecisions) -> None:
        """From the next iteration on."""
        self.decisions, self.engine = decisions, engine(decisions, self.wire)
        self.first_iterations.append(len(self.times))
        self.reports.clear()
        self.due = len(self.times) + self.period
