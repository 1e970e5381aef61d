"""The simulated time of a lowered program is the makespan that its algorithm claims."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.codegen.collective.algorithms import (
    Move,
    decide,
    exchange_allreduce,
    line_alltoall,
    random_algorithm,
    ring_allreduce,
)
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.expected import expected_outputs
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.simulate_program import simulate_program
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import Port


def time_of(decisions, **options: bool) -> int:
    return simulate_program(lower(decisions, **options), decisions).schedule.makespan


@given(
    collective=st.sampled_from(["allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce"]),
    ranks=st.integers(2, 6),
    seed=st.integers(0, 10**6),
)
def test_one_instance_takes_the_makespan(collective: str, ranks: int, seed: int) -> None:
    decisions = random_algorithm(collective, ranks, 1, 1, seed)
    program = lower(decisions)
    batches = {(move.src, move.dst, move.batch) for move in decisions.transfers}
    if sum(step.type == "s" for _, _, step in program.steps()) == len(batches):
        assert simulate_program(program, decisions).schedule.makespan == decisions.makespan_ns


def test_the_ring_takes_six_rounds() -> None:
    assert time_of(ring_allreduce(4)) == time_of(ring_allreduce(4), inplace=True) == 6 * 9000


def test_swapping_partners_do_not_wait_for_each_other() -> None:
    decisions = exchange_allreduce(4)
    assert time_of(decisions) == time_of(decisions, inplace=True) == 15, (
        "three messages of 5 ns, the second round right behind"
    )


def test_line_alltoall_takes_two_rounds() -> None:
    """Spec 6.4: every directed link of the line 0-1-2 carries two chunks."""
    assert time_of(line_alltoall()) == 2 * 9000


def test_ports_take_turns() -> None:
    """A star whose hub has one out-port: three sends one after the other."""
    port = Port(name="hub", links=((0, 1), (0, 2), (0, 3)))
    moves = [Move((0,), 0, rank) for rank in (1, 2, 3)]
    assert time_of(decide("broadcast", 4, moves, root=0)) == 9000
    assert time_of(decide("broadcast", 4, moves, root=0, ports=(port,))) == 27000


def test_an_uplink_lets_the_next_message_in_after_its_own_beta():
    """Two hosts send to two others: 9 us each, of which they hold the uplink for 4."""
    uplink = Port(name="uplink", links=((0, 2), (1, 3)), beta_ns=4000)
    moves = [Move((0,), 0, 2), Move((1,), 1, 3)]
    plain = decide("allgather", 4, moves)
    assert time_of(plain) == 9000
    shared = structs.replace(plain, ports=(uplink,))
    assert time_of(shared) == 13000


def test_ports_serve_who_comes_first_unless_the_program_says_otherwise() -> None:
    """The schedule sends to rank 2 first, which has to pass the chunk on; no runtime knows that."""
    port = Port(name="hub", links=((0, 1), (0, 2)))
    moves = [Move((0,), 0, 2), Move((0,), 0, 1), Move((0,), 2, 3)]
    decisions = decide("broadcast", 4, moves, root=0, ports=(port,))
    assert decisions.makespan_ns == 18000
    assert time_of(decisions) == 27000
    in_turn = structs.replace(decisions, ordered=True)
    assert time_of(in_turn) == 18000
    assert check_program.check(lower(in_turn), expected=expected_outputs(in_turn)) == []


@given(collective=st.sampled_from(["allgather", "allreduce", "alltoall"]), seed=st.integers(0, 10**6))
def test_programs_in_turn_are_right(collective: str, seed: int) -> None:
    decisions = random_algorithm(collective, 5, 1, 1, seed)
    ports = tuple(Port(name=f"{s}", links=tuple((s, d) for d in range(5) if d != s)) for s in range(5))
    in_turn = structs.replace(decisions, ports=ports, ordered=True)
    program = lower(in_turn)
    assert check_program.check(program, expected=expected_outputs(in_turn)) == []
    free = lower(structs.replace(in_turn, ordered=False))
    assert sum(step.type == "nop" or step.depends is not None for *_, step in program.steps()) >= sum(
        step.type == "nop" or step.depends is not None for *_, step in free.steps()
    )
    assert simulate_program(program, in_turn).schedule.makespan > 0


def test_same_chunk_reductions_take_turns() -> None:
    moves = [Move((0,), rank, 0, True) for rank in (1, 2, 3)]
    assert time_of(decide("reduce", 4, moves, root=0)) == 27000


def test_a_batch_pays_alpha_once() -> None:
    moves = [Move((0, 1, 2), 0, 1)]
    assert time_of(decide("broadcast", 2, moves, chunkup=3, root=0)) == 1000 + 3 * 8000


def test_a_split_batch_pays_alpha_for_each_part() -> None:
    """Chunks 0 and 2 do not lie side by side at rank 1."""
    moves = [Move((0,), 0, 1), Move((2,), 2, 1), Move((0, 2), 1, 3)]
    decisions = decide("allgather", 4, moves)
    assert decisions.makespan_ns == 9000 + 17000
    assert time_of(decisions) == 9000 + 18000


def test_instances_share_bandwidth_and_alpha() -> None:
    for instances in (2, 3, 8):
        assert time_of(ring_allreduce(4, instances=instances)) == 6 * 9000


def test_other_programs_are_refused() -> None:
    decisions = ring_allreduce(4)
    fewer = structs.replace(decisions, transfers=decisions.transfers[:-1])
    with pytest.raises(InputError, match="gpu 3 sends 6 chunks to gpu 0 on channel 0, the plan 5"):
        simulate_program(lower(decisions), fewer)
    with pytest.raises(InputError, match="chunks to gpu"):
        simulate_program(lower(ring_allreduce(3)), decisions)


def test_pipelined_messages_follow_each_other_closely() -> None:
    """TE-CCL's model: the link is busy for beta, the message is there alpha later."""
    moves = [Move((chunk,), 0, 1) for chunk in range(3)]
    serial = decide("broadcast", 2, moves, chunkup=3, root=0)
    (cost,) = {link for link in serial.links if (link.src, link.dst) == (0, 1)}
    apart = structs.replace(
        serial,
        transfers=tuple(structs.replace(move, batch=number) for number, move in enumerate(serial.transfers)),
    )
    sends = sum(step.type == "s" for _, _, step in lower(apart).steps())
    assert time_of(apart) == 3 * cost.beta_ns + sends * cost.alpha_ns
    assert time_of(structs.replace(apart, latency="pipelined")) == 3 * cost.beta_ns + cost.alpha_ns


@given(seed=st.integers(0, 10**6), collective=st.sampled_from(["allgather", "allreduce", "alltoall"]))
def test_pipelining_never_takes_longer(seed: int, collective: str) -> None:
    decisions = random_algorithm(collective, 4, 2, 1, seed)
    assert time_of(structs.replace(decisions, latency="pipelined")) <= time_of(decisions)


def test_messages_are_named_with_their_bytes() -> None:
    decisions = decide("broadcast", 2, [Move((0, 1), 0, 1)], chunkup=2, root=0)
    names = [task.name for task in simulate_program(lower(decisions), decisions).tasks]
    assert "0->1 o0+1 2 KiB" in names
