"""The predicted time of a program on the CPU runtime: by hand, and for whole collectives."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.codegen.collective.test_check import ring_program
from treadle.codegen.collective.program import BlockStep, CollectiveProgram, RankProgram, Threadblock
from treadle.codegen.collective.simulate_cpu import TERMS, simulate_cpu, terms_us
from treadle.planner.documents.hardware import Device, Hardware, Network, Nic, Uplink
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.transports import CpuTransport, MessageCost, Transports
from treadle.planner.errors import InputError

COSTS = CpuTransport(
    call_us=10.0,
    step_us=1.0,
    copy_us_per_MB=100.0,
    sum_us_per_MB=150.0,
    memory=MessageCost(message_us=2.0, copy_us_per_MB=100.0, sum_us_per_MB=120.0, latency_us=5.0),
    tcp=MessageCost(message_us=4.0, copy_us_per_MB=200.0, sum_us_per_MB=250.0, latency_us=20.0),
    piece_bytes=MEBIBYTE // 10,
    cores=4,
)


def host(ranks: int, **costs: object) -> Hardware:
    device = Device(model="core", kind="cpu", count=ranks)
    return Hardware(
        version=1, name="host", nodes=1, devices=(device,), transports=Transports(cpu=replace(COSTS, **costs))
    )


def hosts(count: int, beta: float = 10_000.0, uplinks: tuple[Uplink, ...] = (), **costs: object) -> Hardware:
    network = Network(kind="ethernet", alpha_us=30.0, beta_us_per_MB=beta, uplinks=uplinks)
    nics = (Nic(name="eth0", devices=(0,)),)
    return replace(host(1, **costs), nodes=count, nics=nics, network=network)


def program(*blocks: tuple[Threadblock, ...], chunks: int = 1) -> CollectiveProgram:
    ranks = tuple(RankProgram(chunks, chunks, chunks, each) for each in blocks)
    return CollectiveProgram("test", "allreduce", ranks, chunks, 1)


def send(to: int, *chunks: int, channel: int = 0) -> Threadblock:
    return Threadblock(to, None, channel, tuple(BlockStep("s", ("i", c), ("o", c)) for c in chunks))


def take(of: int, *chunks: int, kind: str = "r", channel: int = 0) -> Threadblock:
    steps = (BlockStep(kind, ("i", c), ("o", c)) for c in chunks)  # type: ignore[arg-type]
    return Threadblock(None, of, channel, tuple(steps))


def test_local_steps_take_their_copies_and_sums() -> None:
    copies = (Threadblock(None, None, 0, (BlockStep("cpy", ("i", 0), ("o", 0)), BlockStep("re", ("i", 0), ("o", 0)))),)
    found = simulate_cpu(program(copies, ()), host(2), MEBIBYTE)
    assert found.time_us == pytest.approx(10 + 1 + 100 + 1 + 150)


def test_a_message_is_copied_in_and_out_a_piece_apart() -> None:
    """The receiver ends a piece after the sender: a tenth of a copy, the costs of a message twice, and latency."""
    found = simulate_cpu(program((send(1, 0),), (take(0, 0),)), host(2), MEBIBYTE)
    assert found.time_us == pytest.approx(10 + (1 + 2 + 100) + 5 + (1 + 2 + 100) * (3 + 10) / 103)


def test_a_small_message_is_received_after_it_was_sent() -> None:
    found = simulate_cpu(program((send(1, 0),), (take(0, 0),)), host(2), 1024)
    assert found.time_us == pytest.approx(10 + 2 * (3 + 100 / 1024) + 5)


def test_ranks_share_the_cores_of_their_host_and_of_the_machine_in_a_lab() -> None:
    pair = [(send(1, 0),), (take(0, 0),), (send(3, 0),), (take(2, 0),)]
    alone = simulate_cpu(program(*pair), host(4), 64 * MEBIBYTE).time_us
    assert simulate_cpu(program(*pair), host(4, cores=2), 64 * MEBIBYTE).time_us == pytest.approx(2 * alone, rel=0.01)
    own = simulate_cpu(program(*pair), hosts(4, beta=1.0, cores=1), 64 * MEBIBYTE).time_us
    lab = simulate_cpu(program(*pair), hosts(4, beta=1.0, cores=1, cores_of="machine"), 64 * MEBIBYTE).time_us
    assert lab > 3 * own


def test_between_hosts_the_link_decides_and_latency_is_added() -> None:
    found = simulate_cpu(program((send(1, 0),), (take(0, 0),)), hosts(2), MEBIBYTE)
    assert found.time_us == pytest.approx(10 + 10_000 + 30 + 20 + 65, abs=30)
    half = simulate_cpu(program((send(1, 0),), (take(0, 0),)), hosts(2, link_efficiency=0.5), MEBIBYTE)
    assert half.time_us - found.time_us == pytest.approx(10_000)


def test_messages_share_a_nic_and_an_uplink() -> None:
    """Two messages of one sender take twice as long; so do two of different senders over one uplink of the NICs' rate,
    while those of the other direction have it for themselves."""
    one = simulate_cpu(program((send(1, 0),), (take(0, 0),)), hosts(2), MEBIBYTE).time_us
    two = program((send(1, 0), send(2, 0)), (take(0, 0),), (take(0, 0),))
    assert simulate_cpu(two, hosts(3), MEBIBYTE).time_us == pytest.approx(2 * one, rel=0.02)
    rack = Uplink(name="rack", nodes=(0, 1), beta_us_per_MB=10_000.0)
    out = program((send(2, 0),), (send(3, 0),), (take(0, 0),), (take(1, 0),))
    assert simulate_cpu(out, hosts(4), MEBIBYTE).time_us == pytest.approx(one)
    assert simulate_cpu(out, hosts(4, uplinks=(rack,)), MEBIBYTE).time_us == pytest.approx(2 * one, rel=0.02)
    both = program((send(2, 0),), (take(3, 0),), (take(0, 0),), (send(1, 0),))
    assert simulate_cpu(both, hosts(4, uplinks=(rack,)), MEBIBYTE).time_us == pytest.approx(one)


def test_what_is_passed_on_follows_piece_by_piece() -> None:
    middle = (Threadblock(2, 0, 0, (BlockStep("rcs", ("i", 0), ("o", 0)),)),)
    chain = program((send(1, 0),), middle, (take(1, 0),))
    direct = simulate_cpu(program((send(1, 0),), (take(0, 0),)), hosts(2), 10 * MEBIBYTE).time_us
    assert simulate_cpu(chain, hosts(3), 10 * MEBIBYTE).time_us < 1.05 * direct
    waits = (
        Threadblock(None, 0, 0, (BlockStep("r", ("i", 0), ("o", 0), awaited=True),)),
        Threadblock(2, None, 0, (BlockStep("s", ("o", 0), ("o", 0), depends=(0, 0)),)),
    )
    apart = program((send(1, 0),), waits, (take(1, 0),))
    assert simulate_cpu(apart, hosts(3), 10 * MEBIBYTE).time_us > 1.95 * direct


@pytest.mark.parametrize(("chunks", "waits"), [(1, False), (2, True)])
def test_a_part_of_a_message_is_not_overwritten_while_it_leaves_and_all_of_it_is(chunks: int, waits: bool) -> None:
    """Rank 0 receives a chunk into what it sends."""
    mine = Threadblock(1, None, 0, (BlockStep("s", ("o", 0), ("o", 0), chunks),))
    over = Threadblock(None, 1, 0, (BlockStep("r", ("i", 0), ("o", 0), depends=(0, 0)),))
    takes = Threadblock(None, 0, 0, (BlockStep("r", ("i", 0), ("o", 0), chunks),))
    found = simulate_cpu(program((mine, over), (takes, send(0, 0)), chunks=2), host(2), 2 * MEBIBYTE)
    sent, received = (
        next(each for each in range(len(found.streams)) if found.streams[each].name.startswith(name))
        for name in (f"s {chunks * MEBIBYTE} B to 1", f"r {MEBIBYTE} B from 1")
    )
    assert (found.times.start_us[received] >= found.times.end_us[sent]) == waits


def test_buffers_beyond_the_caches_cost_more() -> None:
    copy = program((Threadblock(None, None, 0, (BlockStep("cpy", ("i", 0), ("o", 0)),)),), ())
    near = simulate_cpu(copy, host(2, cache_bytes=64 << 20, uncached=3.0), 8 << 20).time_us
    far = simulate_cpu(copy, host(2, cache_bytes=64 << 20, uncached=3.0), 64 << 20).time_us
    assert near == pytest.approx(11 + 800)
    assert far == pytest.approx(11 + 6400 * (1 + 2 * (1 - 64 / 384)))


def test_the_terms_say_what_a_time_consists_of() -> None:
    ring = ring_program(4)
    small, large = (terms_us(ring, hosts(4), size) for size in (4096, 64 << 20))
    assert max(small, key=small.__getitem__) == "latency"
    assert max(large, key=large.__getitem__) == "links"
    assert set(small) == set(TERMS)


def test_a_profile_without_costs_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"found no transports\.cpu, expected the costs of the CPU runtime"):
        simulate_cpu(ring_program(2), replace(host(2), transports=Transports()), 1024)
    with pytest.raises(InputError, match="found 2 ranks, expected at least the program's 4"):
        simulate_cpu(ring_program(4), host(2), 1024)


def test_pretended_hosts_exchange_through_memory() -> None:
    """As on one host with that many ranks, whatever links the profile has between its nodes."""
    exchange = program((send(1, 0),), (take(0, 0),))
    pretended = simulate_cpu(exchange, hosts(2, hosts="one"), MEBIBYTE).time_us
    assert pretended == pytest.approx(simulate_cpu(exchange, host(2), MEBIBYTE).time_us)
    assert pretended < simulate_cpu(exchange, hosts(2), MEBIBYTE).time_us
