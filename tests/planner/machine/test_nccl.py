"""NCCL's model of itself, worked by hand: eight GPUs behind one switch, and several nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.machine.machines import profile
from treadle.planner.documents.collective import Collective
from treadle.planner.documents.hardware import Hardware, Switch, Transport
from treadle.planner.documents.nccl_costs import NcclFactors, NcclLibrary
from treadle.planner.documents.transports import Transports
from treadle.planner.machine.nccl import NcclMachine, NcclMethod, best, call_bytes, candidates, library_of

TENTH = 2**20 / 1e5
"""us per MiB of 100 GB/s."""


def hopper(nodes: int = 1, per_node: int = 8, kind: str = "nvswitch", in_network: tuple[str, ...] = ()) -> Hardware:
    """H100 with 100 GB/s each into one switch and 50 GB/s into the network, all of which counts."""
    base = profile("ndv5", nodes)
    assert base.network is not None
    switch = replace(base.switches[0], kind=kind, members=tuple(range(per_node)), beta_us_per_MB=TENTH,
                     in_network=in_network)  # fmt: skip
    return replace(
        base,
        devices=(replace(base.devices[0], count=per_node),),
        switches=(switch,) if per_node > 1 else (),
        nics=base.nics[:per_node],
        network=replace(base.network, beta_us_per_MB=2 * TENTH),
        transport=Transport(link_efficiency=1.0),
    )


def library(hardware: Hardware) -> NcclMachine:
    found = library_of(hardware)
    assert isinstance(found, NcclMachine), found
    return found


def priced(hardware: Hardware, collective: Collective = "allreduce") -> dict[str, NcclMethod]:
    return {each.method: each for each in candidates(library(hardware), collective)}


def test_a_ring_of_one_node():
    """14 hops of 3.4 us for Simple; 14 times an eighth of the bytes leaves each rank at 100 GB/s. LL carries half."""
    found = priced(hopper())
    assert found["ring Simple"].time_us(800_000_000) == pytest.approx(8.4 + 14 * 3.4 + 14_000)
    assert found["ring LL"].time_us(800_000_000) == pytest.approx(6.6 + 14 * 0.6 + 28_000)
    assert found["ring LL128"].time_us(800_000_000) == pytest.approx(14 + 14 * 1.9 + 14_000 / 0.92)
    gathered = priced(hopper(), "allgather")["ring Simple"]
    assert gathered.time_us(800_000_000) == pytest.approx(8.4 + 7 * 3.4 + 7_000)


def test_a_tree_of_one_node():
    """Up a chain of eight and down; each byte is sent twice, at 0.92 of the links, and at 512 KiB at 0.4 of that."""
    found = priced(hopper())
    assert found["tree Simple"].time_us(2**30) == pytest.approx(8.4 + 14 * 4 + 2**30 / (1000 * 92 / 2))
    share = 0.4  # LL at 512 KiB
    assert found["tree LL"].time_us(2**19) == pytest.approx(6.8 + 14 * 0.6 + 2**19 / (1000 * 92 / 3.8 / 2 * share))


def test_the_rings_of_two_nodes_cross_the_network_twice():
    """28 - 2 hops inside, of at least 3 us for Simple, and 2 of 14 us outside; then the plateau."""
    ring = priced(hopper(2))["ring Simple"]
    assert ring.time_us(1) == pytest.approx(8.4 + 28 * 3.4 + 2 * 14, abs=1e-3)
    large = 64 * 16 * 16
    assert ring.time_us(large) == pytest.approx(1.4 * (8.4 + 28 * 3.4 + 2 * 14) + large * 30 / 16 / 1e5)
    few_nics = replace(hopper(2), nics=hopper(2).nics[:1])
    assert priced(few_nics)["ring Simple"].gbps == pytest.approx(50 * 16 / 30)


def test_nvls_needs_a_switch_that_reduces_and_multicasts():
    assert "nvls" not in priced(hopper())
    assert "nvls" not in priced(hopper(in_network=("multicast",)))
    assert set(priced(hopper(in_network=("multicast",)), "allgather")) >= {"nvls"}
    nvls = priced(hopper(in_network=("multicast", "reduce")))["nvls"]
    assert nvls.time_us(10**9) == pytest.approx(25 + 10**9 / (1000 * 2 * 0.85 * 7 / 8 * 100 * 8 / 14))
    ampere = profile("ndv4")
    able = replace(ampere, switches=(replace(ampere.switches[0], in_network=("multicast", "reduce")),))
    assert "nvls" not in priced(able), "NCCL has none for Ampere"


def test_several_such_nodes_are_a_tree():
    found = priced(hopper(4, in_network=("multicast", "reduce")))
    assert "nvls" not in found
    tree = found["nvls_tree"]
    assert tree.latency_us == pytest.approx(25 + 2 * 2 * 14)
    assert tree.gbps == pytest.approx(2 * 0.85 * 7 / 8 * 100 * 32 / 62)


def test_pat_is_for_one_gpu_in_each_node():
    assert "pat" not in priced(hopper(2), "allgather")
    alone = hopper(4, per_node=1)
    assert "pat" not in priced(alone)
    pat = priced(alone, "reducescatter")["pat"]
    assert pat.time_us(10**6) == pytest.approx(8 + 2 * 14 / 3.5 + 4 * 2.8 + 10**6 / (50_000 * 0.75))


@pytest.mark.parametrize(
    ("collective", "algorithms"),
    [("allreduce", {"ring", "tree"}), ("allgather", {"ring"}), ("broadcast", {"ring"}), ("alltoall", set())],
)
def test_what_nccl_has_for_a_collective(collective, algorithms):
    assert {each.algorithm for each in candidates(library(hopper()), collective)} == algorithms


def test_ll128_runs_only_where_lines_stay_whole():
    assert any(method.endswith("LL128") for method in priced(hopper()))
    assert not any(method.endswith("LL128") for method in priced(hopper(kind="pcie")))
    staged = replace(hopper(2), nics=tuple(replace(nic, gpudirect=False) for nic in hopper(2).nics))
    assert not any(method.endswith("LL128") for method in priced(staged))


@pytest.mark.parametrize("name", ["ndv5", "ndv4", "dgx1", "mi300x"])
def test_small_calls_care_for_latency_and_large_ones_for_bytes(name):
    """One node: as bytes grow, what is best never has less latency than what was best before."""
    found = candidates(library(profile(name)), "allreduce")
    chosen = [best(found, 2**power) for power in range(3, 34)]
    assert chosen[0].protocol == "LL"
    assert chosen[-1].protocol == "Simple"
    latencies = [each.latency_us for each in chosen]
    if name != "ndv5":
        assert latencies == sorted(latencies)
    assert {"ndv5": "nvls"}.get(name, "ring") == chosen[-1].algorithm


def test_channels_grow_until_all_are_full():
    """A channel of LL takes 512 threads of 8 bytes, in a ring those of all ranks; NVLS always has its own."""
    found = priced(hopper(in_network=("multicast", "reduce")))
    assert [found["ring LL"].channels(size) for size in (8, 8 * 4096 * 3, 2**30)] == [1, 3, 24]
    assert found["tree LL"].channels(3 * 4096) == 3
    assert found["nvls"].channels(8) == 16


def test_factors_of_the_profile():
    given = NcclLibrary(methods={"ring LL": NcclFactors(latency=2.0, bytes=3.0)}, channels=8)
    slow = replace(hopper(), transports=Transports(nccl_library=given))
    latency, moved = priced(hopper())["ring LL"].parts_us(10**6)
    assert priced(slow)["ring LL"].time_us(10**6) == pytest.approx(2 * latency + 3 * moved)
    assert priced(slow)["ring LL"].channels(2**30) == 8
    latency, moved = priced(hopper())["tree LL"].parts_us(10**6)
    assert priced(slow)["tree LL"].time_us(10**6) == pytest.approx(3 * latency + 3 * moved), "never measured"
    assert library(slow).own.factors == {}


def test_what_is_not_priced_is_said():
    assert library_of(profile("hosts-2x2")) == "NCCL runs on GPUs"
    assert "fewer than two" in str(library_of(hopper(per_node=1)))
    dear = replace(hopper(), switches=(Switch(name="s", kind="nvswitch", members=tuple(range(8))),))
    assert "alpha_us" in str(library_of(dear))


def test_bytes_as_nccl_counts_them():
    assert call_bytes("allgather", 8, 1000) == 8000
    assert call_bytes("allreduce", 8, 1000) == call_bytes("reducescatter", 8, 1000) == 1000


@pytest.mark.parametrize("measured", [["ring LL"], ["ring LL", "nvls"], ["tree LL128", "ring Simple"]])
def test_what_was_never_measured_is_taken_only_where_nccl_prefers_it(measured):
    machine = hopper(in_network=("multicast", "reduce"))
    factors = {name: NcclFactors(latency=1.2 + place, bytes=3.0 - place) for place, name in enumerate(measured)}
    library = replace(machine, transports=Transports(nccl_library=NcclLibrary(methods=factors)))
    by_factors, by_nccl = priced(library), priced(machine)
    for size in (2**power for power in range(3, 34)):
        chosen = best(tuple(by_factors.values()), size).method
        if chosen not in measured:
            assert by_nccl[chosen].time_us(size) < min(by_nccl[name].time_us(size) for name in measured)
