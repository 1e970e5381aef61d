"""Autotune on simulated hosts: what ranks would measure of a plan, given what each host's link carries."""

from __future__ import annotations

import logging
from math import isnan, nan
from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.aggregation.aggregation_plans import decisions_on, problem_on
from treadle.aggregate import autotune
from treadle.aggregate.autotune import Autotune
from treadle.aggregate.links import LinkReport
from treadle.aggregate.tuning import MeasuredCalls, Reports
from treadle.planner.passes.aggregation.check import check
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.planner.passes.aggregation.traffic import pair_bytes
from treadle.probe.schedule import circle

GROUPS = ((0, 1, 2, 3), (4, 5, 6, 7))
HOSTS, CHUNKS, NIC = 8, 64, 1.25e9
PLAN = decisions_on(problem_on(GROUPS, size_bytes=1 << 22), GROUPS, CHUNKS)


def measured(iteration: int, plan: AggregationDecisions, rates: list[float]) -> MeasuredCalls:
    """Of hosts that send and receive at these rates, each link in proportion to its bytes."""
    sent = pair_bytes(HOSTS, plan.groups, plan.chunks).astype(float)
    totals = sent.sum(1)
    time_s = max(total / rate for total, rate in zip(totals, rates, strict=True))
    links = [
        [min(rates[i] / totals[i], rates[j] / totals[j]) * sent[i, j] if sent[i, j] else nan for j in range(HOSTS)]
        for i in range(HOSTS)
    ]
    return MeasuredCalls(iteration, time_s * 1e9, time_s * 1e9, 1 << 22, [[100.0] * HOSTS] * HOSTS, links)


def run(slow: dict[int, list[float]], periods: int, tuner: Autotune) -> list[float]:
    """Times by period in s; `slow` has the rates from a period on. All plans must pass their check."""
    plan, rates, times = PLAN, [NIC] * HOSTS, []
    for period in range(periods):
        rates = slow.get(period, rates)
        found = measured(5 * period, plan, rates)
        times.append(found.time_ns / 1e9)
        answer = tuner.decide(found)
        if answer.probe_bytes is not None:
            probed = [[nan if i == j else min(rates[i], rates[j]) for j in range(HOSTS)] for i in range(HOSTS)]
            answer = replace(answer, decisions=tuner.regroup(probed).decisions or answer.decisions)
        plan = answer.decisions or plan
        assert check(plan) == []
    return times


def test_a_slowed_host_is_planned_around_within_four_steps(caplog: pytest.LogCaptureFixture) -> None:
    """The host must send and receive the whole buffer once whatever is planned."""
    slow = [NIC] * HOSTS
    slow[3] = NIC / 4
    with caplog.at_level(logging.INFO, "treadle.aggregate"):
        times = run({4: slow}, 9, Autotune(PLAN))
    least = (1 << 22) / slow[3]
    assert times[4] > 1.7 * least
    assert times[8] < 1.15 * least
    assert "iteration 20: " in caplog.text
    assert "h3 16 -> " in caplog.text


def test_nothing_happens_while_times_stay_as_they_are() -> None:
    tuner = Autotune(PLAN)
    assert len({*run({}, 8, tuner)}) == 1
    assert tuner.tuner.decisions is PLAN


def test_a_plan_that_fails_its_check_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(autotune, "check", lambda plan: ["$.decisions.chunks: bad"])
    times = run({2: [NIC] * 7 + [NIC / 4]}, 8, Autotune(PLAN))
    assert len({*times[2:]}) == 1
    assert "failed its check and is not used: $.decisions.chunks: bad" in caplog.text


def test_hosts_are_grouped_anew_where_the_links_between_them_have_changed() -> None:
    """The pairs that were near are now slow."""
    tuner = Autotune(PLAN)
    tuner.decide(measured(5, PLAN, [NIC] * HOSTS))
    near = {(i, j) for i in range(HOSTS) for j in range(HOSTS) if i % 2 == j % 2}
    probed = [[nan if i == j else 1e9 if (i, j) in near else 2e7 for j in range(HOSTS)] for i in range(HOSTS)]
    found = tuner.regroup(probed).decisions
    assert found is not None
    assert all(len({host % 2 for host in group}) == 1 for group in found.near)
    assert tuner.regroup(probed).decisions is None


def test_groups_that_are_not_faster_are_taken_back_at_once() -> None:
    tuner = Autotune(PLAN)
    for period in (1, 2, 3):
        tuner.decide(measured(5 * period, PLAN, [NIC] * HOSTS))
    near = {(i, j) for i in range(HOSTS) for j in range(HOSTS) if i % 2 == j % 2}
    probed = [[nan if i == j else 1e9 if (i, j) in near else 2e7 for j in range(HOSTS)] for i in range(HOSTS)]
    regrouped = tuner.regroup(probed).decisions
    assert regrouped is not None
    slower = measured(20, regrouped, [NIC] * HOSTS)._replace(time_ns=1.1e9 * tuner.time_s)
    assert tuner.decide(slower).decisions == PLAN
    assert tuner.decide(measured(25, PLAN, [NIC] * HOSTS)).decisions is None
    assert tuner.decide(measured(30, PLAN, [NIC] * 7 + [NIC / 4])).decisions is not None


def test_reports_have_the_median_of_what_was_seen() -> None:
    reports = Reports()
    for time_ns, rate in ((9, 5.0), (100, nan), (110, 3.0)):
        reports.add(time_ns, 1, 2, LinkReport([nan, 7.0], [nan, rate]))
    time_ns, _, _, unseen, trip, _, rate = reports.medians()
    assert (time_ns, trip, rate) == (100, 7.0, 4.0)
    assert isnan(unseen)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_every_pair_is_probed_once_and_no_host_twice_at_a_time(count: int) -> None:
    found: list[Any] = circle(range(count))
    pairs = [tuple(sorted(pair)) for each in found for pair in each]
    assert len({*pairs}) == len(pairs) == count * (count - 1) // 2
    assert all(len({host for pair in each for host in pair}) == 2 * len(each) for each in found)
    assert len(found) <= count
