"""Published figures of PHub and PBox, from the prices of parts: who is the bottleneck, and how fast."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.planner.passes.server.pbox import pbox, served
from treadle.planner.passes.server.balance import bottleneck, exchanges_per_s, hidden_gbps, limits
from treadle.planner.passes.server.decided import ServerOptions, best_of, decisions_of
from treadle.planner.passes.server.decisions import Policy, ServerDecisions
from treadle.planner.passes.server.problem import Aggregator, Mode, ServerProblem

VGG_11, RESNET_18 = 531_500_000, 46_800_000
NEEDED = {  # Table 2.1, Gbit/s: cc, cs, ncc, ncs; and the rate M/T of gradients that all four rest on
    "ResNet-269": (8.75, (122, 31, 140, 17)),
    "Inception": (3.125, (44, 11, 50, 6)),
    "GoogleNet": (2.875, (40, 10, 46, 6)),
    "AlexNet": (88.0, (1232, 308, 1408, 176)),
}


def decided(
    problem: ServerProblem, policy: Policy = "key-by-interface", aggregator: Aggregator = "cached"
) -> ServerDecisions:
    options = ServerOptions(policy=policy, aggregator=aggregator)
    return decisions_of(best_of(problem, options), options)


def limit_of(decisions: ServerDecisions, kind: str) -> float:
    return next(round(each.exchanges_per_s, 1) for each in limits(decisions) if each.kind == kind)


@pytest.mark.parametrize("network", NEEDED)
@pytest.mark.parametrize("place", range(4), ids=get_args(Mode))
def test_what_hides_communication(network: str, place: int) -> None:
    rate, needed = NEEDED[network]
    mode: Mode = get_args(Mode)[place]
    size = 8 * 5 * 64 * 4096
    shards = 8 if mode in ("cs", "ncs") else 1
    problem = served(size, pbox(5), mode=mode, servers=shards, compute_ns=round(8 * size / rate))
    options = ServerOptions(chunk_bytes=4096)
    found = hidden_gbps(decisions_of(best_of(problem, options), options))
    assert found == pytest.approx(needed[place], abs=0.51)  # the table is rounded, 122.5 and 17.5 down


def test_the_bridge_is_the_bottleneck_of_the_balanced_box() -> None:
    decisions = decided(served(VGG_11))
    found = {kind: limit_of(decisions, kind) for kind in ("worker link", "interfaces", "bridge", "memory")}
    assert found == {"worker link": 102.4, "interfaces": 127.9, "bridge": 75.3, "memory": 104.0}
    slowest = bottleneck(decisions)
    assert slowest is not None
    assert slowest.part == "bridge"
    assert limits(decisions)[0].headroom == 1.0


def test_sums_past_the_cache_make_memory_the_bottleneck() -> None:
    decisions = decided(served(VGG_11), aggregator="bypass")
    assert limit_of(decisions, "memory") == 40.1
    assert limits(decisions)[0].kind == "memory"


def test_one_card_instead_of_ten() -> None:
    decisions = decided(served(VGG_11, pbox(1)))
    assert limit_of(decisions, "interfaces") == 12.8
    assert limits(decisions)[0].kind == "interfaces"


def test_a_small_model_and_the_two_map_policies() -> None:
    """Measured: 790 and 552 exchanges per second, a ratio of 1.43; by the model a byte of another domain passes both
    bridges, which is 1.5."""
    by_key, by_worker = (limit_of(decided(served(RESNET_18), policy), "bridge") for policy in get_args(Policy))
    assert (by_key, by_worker) == (854.7, 569.8)
    assert by_key / by_worker == pytest.approx(1.5, abs=0.001)
    both = best_of(served(RESNET_18), ServerOptions())
    assert both.layout.policy == "key-by-interface"


def test_aggregators_are_as_fast_as_they_were_measured_one_after_the_other() -> None:
    """Table 6.2: 72.08 exchanges per second without sums, 71.6 cached, 40.48 past the caches."""
    none = decided(served(VGG_11, pbox(cached_extra_ppm=0)))
    cached, bypass = (decided(served(VGG_11), aggregator=each) for each in get_args(Aggregator))
    rates = [exchanges_per_s(8, each.time_ns) for each in (none, cached, bypass)]
    assert rates[0] >= rates[1] > 1.5 * rates[2]
    assert limit_of(none, "memory") > limit_of(cached, "memory")
    for rate, measured in zip(rates, (72.08, 71.6, 40.48), strict=True):
        assert rate == pytest.approx(measured, rel=0.06)


def test_as_many_workers_are_carried_as_compute_longer_than_the_server_takes() -> None:
    problem = served(VGG_11, compute_ns=10**9)  # a worker's part of the bridge takes 13.3 ms
    most = decided(problem).most_workers
    assert most == 75
    fits, slow = (decided(served(VGG_11, compute_ns=10**9, workers=count)) for count in (most, most + 1))
    assert max(part.time_ns for part in fits.parts) == 10**9
    slowest = bottleneck(slow)
    assert slowest is not None
    assert slowest.time_ns > 10**9
