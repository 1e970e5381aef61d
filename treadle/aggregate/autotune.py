"""Autotune on the first rank: the planner's tuner is given what ranks measured; what it decides is checked and logged.

Where balanced masters are not enough, the links are probed again and hosts grouped anew (PLink, "Autotune").
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from math import ceil, isnan
from statistics import median

from msgspec.structs import replace

from treadle.aggregate.tuning import MeasuredCalls, PlanChange
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.passes.aggregation.check import check
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.planner.passes.aggregation.prices import NearPrices
from treadle.planner.passes.aggregation.retune import HostTraffic
from treadle.planner.passes.aggregation.traffic import pair_bytes
from treadle.planner.passes.aggregation.tuner import MOST_STEPS, MastersTuner, Tried

log = logging.getLogger("treadle.aggregate")
PROBE_SECONDS = 0.02
LEAST_PROBE, MOST_PROBE = 64 << 10, 4 << 20
WORTH = 0.9
"""Another grouping is taken where it is predicted to take at most this part of the time."""
Matrix = list[list[float | None]]


class Autotune:
    """Decides on the plan of the next iterations, which has been `decisions` so far."""

    def __init__(self, decisions: AggregationDecisions) -> None:
        self.tuner = MastersTuner(decisions)
        self.warm = False
        self.time_s = 0.0
        """Time of an iteration when it was measured last."""

    def decide(self, measured: MeasuredCalls) -> PlanChange:
        """After some iterations under the tuner's decisions. The first ones count for nothing: connections have just
        opened."""
        if not self.warm:
            self.warm = True
            return PlanChange()
        before, usual_s, time_s = self.tuner.decisions, self.tuner.usual_s, measured.time_ns / 1e9
        tuner, decisions = self.tuner.step(time_s, _traffic(before, measured))
        seen = f"iteration {measured.iteration}: {_ms(time_s)}"
        if usual_s is not None:
            seen += f", usually {_ms(usual_s)}"
        if decisions is not None and not self._passes(decisions, seen):
            self.tuner = MastersTuner(before)
            return PlanChange()
        self.tuner, self.time_s = tuner, time_s
        probe = _probe_bytes(measured) if tuner.outgrown else None
        if decisions is not None:
            log.info(f"{seen}; {moved(before, decisions)}")
        if probe is not None:
            log.info(f"{seen}; balanced masters are not enough, the links are probed again")
        return PlanChange(decisions=decisions, probe_bytes=probe)

    def regroup(self, bytes_per_second: list[list[float]]) -> PlanChange:
        """Plan for the rates that were probed, if that is predicted to be better than what is done now; the tuner goes
        back if it is not."""
        from treadle.planner.passes.aggregation.planning import AggregationOptions, plan_aggregation

        now = self.tuner.decisions
        problem = replace(now.problem, ns_per_MiB=_costs(now, _of_hosts(now, bytes_per_second, min)))
        planned = plan_aggregation(problem, options=AggregationOptions()).decisions
        held = NearPrices(problem, planned.near).of(now.groups, now.chunks)
        said = f"predicted {_ms(held.time_ns / 1e9)} on the links as they are, {_ms(planned.time_ns / 1e9)} regrouped"
        if planned.time_ns > WORTH * held.time_ns or not self._passes(planned, said):
            log.info(f"{said}; groups stay")
            return PlanChange()
        log.info(f"{said}: {planned.levels} levels, groups {'; '.join(map(_names(planned), planned.groups))}")
        # No steps are left: what is not faster at once is taken back, for Finetune does not make other groups better.
        self.tuner = MastersTuner(planned, self.time_s, Tried(self.time_s, now), steps=MOST_STEPS)
        return PlanChange(decisions=planned)

    def _passes(self, decisions: AggregationDecisions, seen: str) -> bool:
        findings = check(decisions)
        if findings:
            log.warning(f"{seen}; a new plan failed its check and is not used: {findings[0]}")
        return not findings


def moved(before: AggregationDecisions, after: AggregationDecisions) -> str:
    """Which hosts got or gave masters."""
    hosts = before.problem.hosts
    words = []
    for kind, counts in (("local", _locals), ("global", _tops)):
        old, new = counts(before), counts(after)
        found = [
            f"{host.name} {old[number]} -> {new[number]}"
            for number, host in enumerate(hosts)
            if old[number] != new[number]
        ]
        if found:
            words.append(f"{kind} masters {', '.join(found)}")
    return "; ".join(words) or "the same masters in another order"


def _locals(decisions: AggregationDecisions) -> Counter[int]:
    return Counter(host for chunk in decisions.chunks for host in chunk.local)


def _tops(decisions: AggregationDecisions) -> Counter[int]:
    return Counter(chunk.top for chunk in decisions.chunks)


def _traffic(decisions: AggregationDecisions, measured: MeasuredCalls) -> HostTraffic:
    """By hosts, what ranks measured. Bytes are those of the plan's messages."""
    scale = measured.bytes_summed / decisions.problem.size_bytes
    sent = pair_bytes(len(decisions.problem.hosts), decisions.groups, decisions.chunks) * scale
    trips = _of_hosts(decisions, measured.round_trip_us, max)
    return HostTraffic(
        sent=sent.tolist(),
        round_trip_s=[[None if trip is None else trip / 1e6 for trip in row] for row in trips],
        rates=_of_hosts(decisions, measured.bytes_per_second, sum),
    )


def _of_hosts(decisions: AggregationDecisions, by_rank: list[list[float]], joined: Callable[..., float]) -> Matrix:
    """A matrix by rank as one by host, None where nothing was seen."""
    slots = decisions.problem.hosts[0].slots
    hosts = range(len(decisions.problem.hosts))

    def seen(i: int, j: int) -> float | None:
        ranks = [(i * slots + a, j * slots + b) for a in range(slots) for b in range(slots)]
        found = [by_rank[a][b] for a, b in ranks if not isnan(by_rank[a][b])]
        return joined(found) if found and i != j else None

    return [[seen(i, j) for j in hosts] for i in hosts]


def _costs(decisions: AggregationDecisions, rates: Matrix) -> tuple[tuple[int, ...], ...]:
    """ns per MiB of the slower direction of each pair; the problem's where a pair was not probed."""
    known = decisions.problem.ns_per_MiB

    def cost(i: int, j: int) -> int:
        found = [rate for rate in (rates[i][j], rates[j][i]) if rate]
        return known[i][j] if i == j or not found else ceil(MEBIBYTE * 1e9 / min(found))

    return tuple(tuple(cost(i, j) for j in range(len(known))) for i in range(len(known)))


def _probe_bytes(measured: MeasuredCalls) -> int:
    """What a link carries in some milliseconds, at the rate that all connections of a rank have together."""
    sums = [sum(rate for rate in row if not isnan(rate)) for row in measured.bytes_per_second]
    return int(min(MOST_PROBE, max(LEAST_PROBE, median(sums) * PROBE_SECONDS)))


def _names(decisions: AggregationDecisions) -> Callable[[tuple[int, ...]], str]:
    return lambda group: ", ".join(decisions.problem.hosts[host].name for host in group)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
