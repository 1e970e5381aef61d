"""Probing pairs, on hosts whose network is a model: what is measured when, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from typing import Any

import pytest

from treadle.planner.documents.cost_matrix import CostHost
from treadle.planner.errors import CheckFailed
from treadle.planner.machine.host_costs import host_costs
from treadle.probe import pairs
from treadle.probe.crew import CrewHost
from treadle.probe.member import Message
from treadle.probe.pairs import ProbedPairs, ProbeSettings, probe_pairs
from treadle.probe.streams import Pair

pytestmark = pytest.mark.usefixtures("few_steps")

NIC, UPLINK = 100e6, 100e6


class ModelCrew:
    """Hosts in racks, each behind an uplink as fast as one NIC; `latency_us` of a direction of a pair, None for loss.
    Streams that share an uplink divide it unevenly, differently in each experiment."""

    def __init__(self, racks: list[int], latency_us: Callable[[int, int], float | None]) -> None:
        self.racks, self.latency_us = racks, latency_us
        self.hosts = tuple(CrewHost(f"h{place}", 1, (f"10.0.0.{place}", 1, 2), {}) for place in range(len(racks)))
        self.answers: list[Queue[Message]] = [Queue() for _ in racks]
        self.jobs: dict[int, Message] = {}
        self.rounds: list[tuple[str, set[Pair]]] = []
        self.ended = 0

    def send(self, place: int, message: Message) -> None:
        kind = message["kind"]
        if kind == "end":
            self.ended += 1
            self.answers[place].put({"kind": "ended"})
        elif kind == "go":
            self.answers[place].put({"kind": "found", "found": self._found(place)})
        elif kind != "peers":
            if message["number"] != len(self.rounds):
                self.rounds.append((kind, set()))
            self.rounds[-1][1].update((src, dst) for _, src, dst in message["pairs"])
            self.jobs[place] = message
            self.answers[place].put({"kind": "ready"})

    def receive(self, place: int, seconds: float) -> Message:
        return self.answers[place].get_nowait()

    def _found(self, place: int) -> dict[str, Any]:
        kind, running = self.rounds[-1]
        found: dict[str, Any] = {}
        for number, src, dst in self.jobs[place]["pairs"]:
            if kind == "echo" and src == place:
                us = self.latency_us(src, dst)
                times = [] if us is None else [2 * us] * self.jobs[place]["probes"]
                found[str(number)] = {"times_us": times, "late": 0, "lost": 10 - len(times)}
            elif kind == "rates" and dst == place:
                found[str(number)] = self._rate(src, dst, running)
        return found

    def _rate(self, src: int, dst: int, running: set[Pair]) -> float:
        if self.racks[src] == self.racks[dst]:
            return NIC
        sharing = sorted(pair for pair in running if self.racks[pair[0]] == self.racks[src] != self.racks[pair[1]])
        weights = {pair: 1 + (pair[0] + pair[1] + len(self.rounds)) % 3 for pair in sharing}
        return min(NIC, UPLINK * weights[src, dst] / sum(weights.values()))


def probed(racks: list[int], latency_us: Callable[[int, int], float | None]) -> tuple[ProbedPairs, ModelCrew]:
    crew = ModelCrew(racks, latency_us)
    hosts = [CostHost(name=each.name) for each in crew.hosts]
    found = probe_pairs(
        crew, range(len(racks)), hosts, ProbeSettings(10), when="2026-11-28T10:00:00Z", command="treadle", on_step=print
    )
    return found, crew


def test_racks_that_show_only_under_load_are_found_and_share_their_uplink_evenly() -> None:
    found, crew = probed([0, 1, 0, 1, 0, 1], lambda src, dst: 20.0)
    assert found.groups == ((0, 2, 4), (1, 3, 5))
    rates = {(rate.src, rate.dst): rate.bytes_per_second for rate in found.matrix.rates}
    assert len(rates) == 15
    for (src, dst), rate in rates.items():
        assert rate == pytest.approx(NIC if src % 2 == dst % 2 else UPLINK / 3, rel=1e-3)
    assert crew.ended == 6
    for kind, running in crew.rounds:
        sending = [src for src, _ in running]
        assert len(set(sending)) == len(sending)
        assert all(((dst, src) in running) == (kind == "rates") for src, dst in running)
    assert [kind for kind, _ in crew.rounds] == ["echo"] * 10 + ["rates"] * (5 + 3)


def test_the_larger_latency_of_both_directions_counts_and_their_asymmetry_is_kept() -> None:
    found, _ = probed([0] * 4, lambda src, dst: 30.0 if (src, dst) == (3, 1) else 20.0 if src < dst else 16.0)
    us = found.matrix.latency_us
    assert us[1][3] == us[3][1] == 30
    assert us[0][1] == us[1][0] == 20
    assert found.matrix.probing is not None
    uneven = found.matrix.probing.asymmetry
    assert uneven is not None
    assert (uneven.median, uneven.largest, uneven.pair) == (1.25, 1.5, (1, 3))
    assert found.groups == ((0, 1, 2, 3),)
    assert host_costs(found.matrix, "").latency_ns[1][3] == 30_000


def test_pairs_that_do_not_answer_are_left_out_and_named() -> None:
    lost = {(0, 2), (2, 0), (1, 3)}
    found, _ = probed([0] * 4, lambda src, dst: None if (src, dst) in lost else 20.0)
    assert found.silent == ((0, 2),)
    assert found.matrix.latency_us[0][2] is found.matrix.latency_us[2][0] is None
    assert found.matrix.latency_us[1][3] == 20
    assert found.matrix.probing is not None
    assert found.matrix.probing.lost == 30


def test_a_host_that_answers_none_of_the_others_is_one_line() -> None:
    with pytest.raises(CheckFailed, match=r"^h2 and the other hosts do not answer each other's echoes"):
        probed([0] * 4, lambda src, dst: None if 2 in (src, dst) else 20.0)


@pytest.mark.slow
def test_of_many_hosts_some_rounds_are_chosen_and_all_pairs_get_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "EVERY_RATE", 8)
    monkeypatch.setattr(pairs, "SOME_ROUNDS", 3)
    racks = [place // 6 for place in range(18)]
    found, crew = probed(racks, lambda src, dst: 10.0 if racks[src] == racks[dst] else 30.0)
    assert found.groups == (tuple(range(6)), tuple(range(6, 12)), tuple(range(12, 18)))
    assert [kind for kind, _ in crew.rounds].count("rates") == 3 + 2 + 3
    per_MiB = host_costs(found.matrix, "").ns_per_MiB
    assert per_MiB is not None
    for src in range(18):
        for dst in range(18):
            if src != dst and racks[src] == racks[dst]:
                assert per_MiB[src][dst] == pytest.approx(2**20 / NIC * 1e9, rel=1e-3)
            elif src != dst:
                assert per_MiB[src][dst] > 1.2 * 2**20 / NIC * 1e9
