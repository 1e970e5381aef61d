"""How well groups of hosts are found in noisy probes, and what groups are worth to an allreduce in two levels.

The figures are those of "PLink": accuracy of affinities (PAIA) with and without an embedding, agreement of clusterings
with the racks (AMI), and two levels by ProbeEmbed against balanced random groups and against the known racks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isqrt
from random import Random
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from benchmarks.aggregation.agreement import adjusted_mutual_information
from benchmarks.common import Row, Table, progress
from treadle.planner.machine.clustering import clustered, group_count
from treadle.planner.machine.embedding import embedded
from treadle.planner.machine.masters import shared_out
from treadle.planner.machine.near_hosts import divisions, near_hosts
from treadle.planner.machine.paia import affinity_accuracy
from treadle.planner.passes.aggregation.candidates import chunks_of
from treadle.planner.passes.aggregation.planning import plan_aggregation
from treadle.planner.passes.aggregation.prices import NearPrices
from treadle.planner.passes.aggregation.problem import AggregatingHost, AggregationProblem
from treadle.planner.passes.aggregation.traffic import pieces

Matrix = NDArray[np.float64]
Groups = tuple[tuple[int, ...], ...]
CLUSTERS, RACKS, HOSTS = 4, 4, 4
"""Clusters, racks in each, hosts in each: 64 hosts at distances of 10, 20 and 30."""
NOISES, SEEDS, DIMENSIONS = (0.3, 0.6, 1.0), range(5), (2, 3, 5)
NETWORKS = {
    "2 racks of 8, 8:1": (2, 8, 8),
    "4 racks of 4, 4:1": (4, 4, 4),
    "8 racks of 8, 4:1": (8, 8, 4),
    "8 racks of 8, 8:1": (8, 8, 8),
}
RATE_NS, LATENCY_NS, SIZE, RANDOM_RUNS = 838_861, 20_000, 100 << 20, 20
"""10 Gb/s of each host; 100 MiB are summed."""


def tables() -> Iterator[Table]:
    """PAIA and AMI of raw and embedded probes, and two levels by found, random and known groups."""
    progress("affinities")
    yield Table(
        "Triplets of hosts whose costs order them as their positions do (PAIA), %",
        [affinity_row(noise) for noise in NOISES],
        (
            "64 hosts, 4 clusters of 4 racks, costs 10, 20 and 30 with noise of one side; mean of five seeds",
            "d: dimensions; published: 81.3 raw, 86.3 with alpha 1, 89.4 with alpha 2",
        ),
    )
    progress("clusterings")
    yield Table(
        "Agreement of groups with the racks and clusters of the same hosts (AMI)",
        [agreement_row(noise, number) for noise in NOISES for number in (CLUSTERS, CLUSTERS * RACKS)],
        (
            "rows: constrained k-means on rows of the raw matrix; chosen: by separation, as near_hosts does",
            "published: 0.59 with alpha 1, 0.76 with alpha 2",
        ),
    )
    progress("networks")
    yield Table(
        "Allreduce of 100 MiB in two levels, predicted ms on the network without noise, by groups",
        [network_row(name, *network) for name, network in NETWORKS.items()],
        (
            "probes have noise of 0.3; sqrt: as many groups as the square root of the hosts; plan: as planned",
            "published: ProbeEmbed 1.3 to 3.9 times as fast as random groups, 1.15 times as fast as known ones",
        ),
    )


def positions() -> list[tuple[int, int, int]]:
    return [(cluster, rack, host) for cluster in range(CLUSTERS) for rack in range(RACKS) for host in range(HOSTS)]


def probed(noise: float, seed: int) -> Matrix:
    """Costs of the 64 hosts."""
    place = np.array(positions())
    common = (np.cumprod(place[:, None] == place[None, :], 2)).sum(2)
    return noisy(np.array([30.0, 20.0, 10.0, 0.0])[common], noise, seed)


def noisy(costs: Matrix, noise: float, seed: int) -> Matrix:
    draw = np.random.default_rng(seed)
    found = costs * (1 + noise * abs(draw.normal(size=costs.shape)))
    return np.maximum(found, found.T)


def distances(costs: Matrix, alpha: float, dims: int) -> Matrix:
    points = np.array(embedded(costs.tolist(), alpha=alpha, dimensions=dims).points)
    return np.asarray(((points[:, None] - points[None, :]) ** 2).sum(2))


def affinity_row(noise: float) -> Row:
    probes = [probed(noise, seed) for seed in SEEDS]
    row: Row = {"noise": noise, "raw": mean(accuracy(costs) for costs in probes)}
    for alpha in (1.0, 2.0):
        for dims in DIMENSIONS:
            row[f"alpha {alpha:g}, {dims} d"] = mean(accuracy(distances(costs, alpha, dims)) for costs in probes)
    return row


def accuracy(costs: Matrix) -> float:
    found = affinity_accuracy(costs.tolist(), positions())
    return 100 * found.correct / found.compared


def agreement_row(noise: float, number: int) -> Row:
    truth = [cluster if number == CLUSTERS else cluster * RACKS + rack for cluster, rack, _ in positions()]
    probes = [probed(noise, seed) for seed in SEEDS]

    def agreement(found: Iterable[Groups]) -> float:
        return mean(adjusted_mutual_information(truth, labels(groups)) for groups in found)

    by_alpha = [list(divisions(costs.tolist(), [number])) for costs in probes]
    return {
        "noise": noise,
        "groups": number,
        "rows": agreement(clustered(costs.tolist(), number).groups for costs in probes),
        **{
            f"alpha {found[0].embedded.alpha:g}": agreement(each.groups for each in found)
            for found in zip(*by_alpha, strict=True)
        },
        "chosen": agreement(near_hosts(costs.tolist(), number).groups for costs in probes),
    }


def labels(groups: Groups) -> list[int]:
    home = {host: number for number, group in enumerate(groups) for host in group}
    return [home[host] for host in range(len(home))]


def network_row(name: str, count: int, size: int, slower: int) -> Row:
    """Hosts in a random order, of which pairs between racks have a rate that many times lower."""
    hosts = count * size
    draw = Random(0)
    places = draw.sample(range(hosts), hosts)
    racks = tuple(tuple(sorted(host for host in range(hosts) if places[host] // size == rack)) for rack in range(count))
    home = np.array(labels(racks))
    same = home[:, None] == home[None, :]
    rates = np.where(same, RATE_NS, RATE_NS * slower).astype(float)
    np.fill_diagonal(rates, 0)
    latency = np.where(same, LATENCY_NS, 2 * LATENCY_NS).astype(float)
    np.fill_diagonal(latency, 0)
    real = problem(latency, rates)
    seen = problem(noisy(latency, 0.3, 1), noisy(rates, 0.3, 2))
    prices, parts = NearPrices(real, racks), pieces(real)

    def predicted(groups: Groups) -> float:
        return prices.of(groups, chunks_of(parts, shared_out(groups, len(parts)), 1)).time_ns / 1e6

    plan = plan_aggregation(seen).decisions
    found = prices.of(plan.groups, plan.chunks).time_ns / 1e6
    at_random = [balanced(hosts, draw) for _ in range(RANDOM_RUNS)]
    row: Row = {
        "network": name,
        "flat": predicted((tuple(range(hosts)),)),
        "balanced random": mean(map(predicted, at_random)),
        "ProbeEmbed, sqrt": predicted(near_hosts(seen.ns_per_MiB, group_count(hosts)).groups),
        "known racks": predicted(racks),
        "plan": found,
        "levels": plan.levels,
    }
    return {**row, "random / plan": row["balanced random"] / found, "known / plan": row["known racks"] / found}


def problem(latency: Matrix, rates: Matrix) -> AggregationProblem:
    def rows(costs: Matrix) -> tuple[tuple[int, ...], ...]:
        return tuple(map(tuple, costs.round().astype(int).tolist()))

    return AggregationProblem(
        version=1,
        hosts=tuple(AggregatingHost(name=f"h{host}") for host in range(len(rates))),
        latency_ns=rows(latency),
        ns_per_MiB=rows(rates),
        size_bytes=SIZE,
    )


def balanced(hosts: int, draw: Random) -> Groups:
    """As many groups as hosts in each, by chance (PLink, "Balanced Random")."""
    order, count = draw.sample(range(hosts), hosts), isqrt(hosts)
    return tuple(sorted(tuple(sorted(order[number::count])) for number in range(count)))
