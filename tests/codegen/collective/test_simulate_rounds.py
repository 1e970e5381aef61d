"""The predicted time of rounds of grouped messages: by hand, and beside the links alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.codegen.collective.test_simulate_cpu import program, send, take
from treadle.codegen.collective.program import BlockStep, Threadblock
from treadle.codegen.collective.simulate_rounds import simulate_rounds
from treadle.planner.documents.hardware import Device, Hardware, Network, Nic
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.transports import GroupedTransport, Transports
from treadle.planner.errors import InputError

COSTS = GroupedTransport(
    call_us=2.0, group_us=10.0, message_us=1.0, local_us=3.0, local_gbps=MEBIBYTE / 1e5, link_efficiency=0.5
)
"""Local work takes 100 us per MiB."""


def hosts(count: int) -> Hardware:
    """Hosts of one GPU each; a message takes 5 us and, at half the rate, 40 us per MiB."""
    return Hardware(
        version=1,
        name="hosts",
        nodes=count,
        devices=(Device(model="card", kind="gpu", count=1),),
        nics=(Nic(name="ib0", devices=(0,)),),
        network=Network(kind="ib", alpha_us=5.0, beta_us_per_MB=20.0),
        transports=Transports(nccl=COSTS),
    )


def test_a_message_waits_for_both_groups_and_pays_its_alpha() -> None:
    found = simulate_rounds(program((send(1, 0),), (take(0, 0),)), hosts(2), MEBIBYTE)
    assert found.time_us == pytest.approx(2 + 10 + 5 + 40)
    assert (found.rounds, found.messages) == (1, 1)


def test_messages_through_one_nic_share_it() -> None:
    """Rank 0 sends to two others: 2 messages in its group, each at half of its port's rate."""
    found = simulate_rounds(program((send(1, 0), send(2, 0)), (take(0, 0),), (take(0, 0),)), hosts(3), MEBIBYTE)
    assert found.time_us == pytest.approx(2 + 10 + 1 + 5 + 2 * 40)


def test_a_summand_is_added_by_a_kernel_before_the_next_round() -> None:
    """Rank 1 adds what comes and sends the sum back."""
    back = Threadblock(0, 0, 0, (BlockStep("rrcs", ("i", 0), ("i", 0)),))
    there = Threadblock(1, 1, 0, (BlockStep("s", ("i", 0), ("i", 0)), BlockStep("r", ("i", 0), ("o", 0))))
    found = simulate_rounds(program((there,), (back,)), hosts(2), MEBIBYTE)
    # The copy out of rank 0's input and the sum are local work; two rounds follow each other.
    assert found.time_us == pytest.approx(2 + (10 + 5 + 40) + (3 + 100) + (10 + 5 + 40))


def test_nothing_is_passed_on_before_it_has_ended() -> None:
    """A chain of three takes twice the time of a message, however large: TCP and slots would overlap the two."""
    chain = program((send(1, 0),), (Threadblock(2, 0, 0, (BlockStep("rcs", ("i", 0), ("o", 0)),)),), (take(1, 0),))
    for size in (MEBIBYTE, 64 * MEBIBYTE):
        found = simulate_rounds(chain, hosts(3), size)
        assert found.time_us == pytest.approx(2 + 2 * (10 + 5 + 40 * size / MEBIBYTE))


def test_profiles_without_the_costs_and_too_few_ranks_are_refused() -> None:
    chain = program((send(1, 0),), (take(0, 0),))
    with pytest.raises(InputError, match=r"found no transports\.nccl"):
        simulate_rounds(chain, replace(hosts(2), transports=Transports()), 1)
    with pytest.raises(InputError, match="found 1 ranks, expected at least the program's 2"):
        simulate_rounds(chain, replace(hosts(2), nodes=1), 1)
