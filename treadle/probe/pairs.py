"""What it costs to send between every two hosts of a crew, measured: a cost matrix.

1. Latencies: in every round of the circle schedule each pair probes in one direction, then in the other.
2. Rates: in rounds of the same schedule all pairs send in both directions at once.
3. Rates between the groups of near hosts that were found, in rounds in which every host sends to one of another group,
   so that what groups share is full: what two groups carry together is divided among their pairs. A pair that had
   little of it twice is measured alone, as streams are not divided evenly for a minute and more.

Every round has each host in one pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from treadle.planner.documents.cost_matrix import CostHost, CostMatrix, Probing
from treadle.planner.errors import CheckFailed
from treadle.planner.machine.host_costs import host_costs
from treadle.planner.machine.host_groups import host_groups
from treadle.probe.crew import Conductor, Crew
from treadle.probe.echo import WAIT_SECONDS, percentile
from treadle.probe.measured_matrix import asymmetry, lower_rates, matrix_of
from treadle.probe.schedule import Pair, Round, across, circle, inside, spread
from treadle.probe.shared_rates import shared_rates, slow_pairs

EVERY_RATE = 64
"""Up to this number of hosts every pair gets a rate."""
SOME_ROUNDS, INSIDE_ROUNDS = 16, 2
"""With more hosts: rounds, at equal distances, of those between all hosts and of those between groups; and rounds
inside all groups at once, which join the hosts of each into a ring."""


class ProbeSettings(NamedTuple):
    """`probes` echoes in each direction of a pair, of whose times the `percentile` counts."""

    probes: int = 1000
    percentile: float = 10.0


class ProbedPairs(NamedTuple):
    """The matrix, the groups of near hosts between which rates were measured, and the pairs that never answered."""

    matrix: CostMatrix
    groups: tuple[tuple[int, ...], ...]
    silent: tuple[Pair, ...]


class _Echoes(NamedTuple):
    """By direction; None where no probe was answered."""

    latency_us: dict[Pair, float | None]
    late: int
    lost: int


class _Rounds:
    """Conducts rounds of pairs of hosts, which are `members` of a crew. `on_step` gets a line after each."""

    def __init__(self, conductor: Conductor, members: Sequence[int], on_step: Callable[[str], None]) -> None:
        self.conductor, self.members, self.on_step = conductor, members, on_step

    def echoes(self, rounds: Sequence[Round], settings: ProbeSettings) -> _Echoes:
        latency: dict[Pair, float | None] = {}
        late = lost = 0
        for number, pairs in enumerate(rounds):
            for directed in (pairs, _reversed(pairs)):
                answers = self.conductor.conduct(
                    "echo", self._of_members(directed), settings.probes * WAIT_SECONDS, probes=settings.probes
                )
                for pair, answer in zip(directed, answers, strict=True):
                    times = answer["times_us"]
                    latency[pair] = percentile(times, settings.percentile) / 2 if times else None
                    late, lost = late + answer["late"], lost + answer["lost"]
            self.on_step(f"latencies, round {number + 1}/{len(rounds)}")
        return _Echoes(latency, late, lost)

    def rates(self, rounds: Sequence[Round], what: str) -> dict[Pair, float]:
        found: dict[Pair, float] = {}
        for number, pairs in enumerate(rounds):
            both = (*pairs, *_reversed(pairs))
            found |= zip(both, self.conductor.rates(self._of_members(both)), strict=True)
            self.on_step(f"{what}, round {number + 1}/{len(rounds)}")
        return found

    def alone(self, pairs: Sequence[Pair]) -> dict[Pair, float]:
        """Streams of which no other runs at the same time."""
        found: dict[Pair, float] = {}
        for number, pair in enumerate(pairs):
            found |= zip((pair,), self.conductor.rates(self._of_members([pair])), strict=True)
            self.on_step(f"rates of doubtful pairs, {number + 1}/{len(pairs)}")
        return found

    def _of_members(self, pairs: Sequence[Pair]) -> list[Pair]:
        return [(self.members[src], self.members[dst]) for src, dst in pairs]


def probe_pairs(
    crew: Crew,
    members: Sequence[int],
    hosts: Sequence[CostHost],
    settings: ProbeSettings,
    *,
    when: str,
    command: str,
    on_step: Callable[[str], None] = lambda line: None,
) -> ProbedPairs:
    """Probe `hosts`, at least two, which are `members` of the crew. `when` is the time in UTC.

    Raises CheckFailed, which names it, for a host that answers none of the others, and where one ends.
    """
    few = len(hosts) <= EVERY_RATE
    every = circle(range(len(hosts)))
    with Conductor(crew) as conductor:
        rounds = _Rounds(conductor, members, on_step)
        echoes = rounds.echoes(every, settings)
        silent = _silent(echoes.latency_us, hosts)
        rates = rounds.rates(every if few else spread(every, SOME_ROUNDS), "rates")
        probing = Probing(
            probes=settings.probes,
            percentile=settings.percentile,
            lost=echoes.lost,
            late=echoes.late,
            asymmetry=asymmetry(echoes.latency_us),
        )
        found = matrix_of(hosts, echoes.latency_us, rates, probing, when, {})
        groups = () if silent else _groups(found, by_rates=few)
        between = across(groups)
        if not few:
            between = spread(between, SOME_ROUNDS)
            rates = lower_rates(rates, rounds.rates(inside(groups, INSIDE_ROUNDS), "rates in groups"))
        full = rounds.rates(between, "rates between groups")
        alone = rounds.alone(slow_pairs(between, full, rates, groups))
        best = {pair: max(rates.get(pair, 0.0), alone.get(pair, 0.0)) for pair in {**rates, **alone}}
        rates |= shared_rates(between, full, best, groups)
    how = f"measured: `{command}`"
    shared = f"; between {len(groups)} groups of near hosts what pairs get of both together" if between else ""
    sources = {
        "latency_us": f"{how}; half of a round trip of an echo, the larger one of both directions",
        "rates": f"{how}; a stream while all other pairs of its round send, the lower one of both directions{shared}",
    }
    return ProbedPairs(matrix_of(hosts, echoes.latency_us, rates, probing, when, sources), groups, silent)


def _groups(costs: CostMatrix, *, by_rates: bool) -> tuple[tuple[int, ...], ...]:
    """Groups of near hosts; where few pairs have a rate, by latency only, as estimates have groups of their own."""
    whole = host_costs(costs, "")
    return host_groups(whole.latency_ns, whole.ns_per_MiB if by_rates else None).groups


def _reversed(pairs: Sequence[Pair]) -> Round:
    return tuple((dst, src) for src, dst in pairs)


def _silent(latency_us: Mapping[Pair, float | None], hosts: Sequence[CostHost]) -> tuple[Pair, ...]:
    """Pairs that answered in no direction. Raises CheckFailed for a host that answered none of the others."""
    pairs = list(combinations(range(len(hosts)), 2))
    silent = tuple((i, j) for i, j in pairs if latency_us[i, j] is None and latency_us[j, i] is None)
    for place, host in enumerate(hosts):
        if sum(place in pair for pair in silent) == len(hosts) - 1:
            raise CheckFailed(
                f"{host.name} and the other hosts do not answer each other's echoes, which are UDP datagrams"
            )
    return silent
