"""Emission promises: a plan that the independent checker accepts, or an error that names the limit."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
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
from treadle.codegen.collective.expected import expected_outputs
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.mscclpp import check as check_mscclpp
from treadle.codegen.collective.mscclpp import document
from treadle.codegen.collective.mscclpp.document import ExecutionPlan
from treadle.codegen.collective.mscclpp.lower import emit, far_pairs
from treadle.planner.documents.collective import Demand
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, LinkCost

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


def nodes(ranks: int, per_node: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(ranks) for b in range(ranks) if a // per_node != b // per_node]


def names(plan: ExecutionPlan, rank: int = 0) -> Counter[str]:
    return Counter(op.name for block in plan.gpus[rank].threadblocks for op in block.ops)


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.parametrize("collective", COLLECTIVES)
@settings(max_examples=20)
@given(data=st.data())
def test_random_algorithms_become_plans_that_are_accepted(collective: str, protocol: str, data: st.DataObject) -> None:
    ranks, chunkup = data.draw(st.integers(2, 5), label="ranks"), data.draw(st.integers(1, 2), label="chunkup")
    instances = data.draw(st.sampled_from([1, 2]), label="instances")
    seed = data.draw(st.integers(0, 10**6), label="seed")
    decisions = structs.replace(random_algorithm(collective, ranks, chunkup, instances, seed), protocol=protocol)
    inplace = collective != "alltoall" and data.draw(st.booleans(), label="inplace")
    fuse, merge = data.draw(st.booleans(), label="fuse"), data.draw(st.booleans(), label="merge")
    program = lower(decisions, inplace=inplace, fuse=fuse, merge=merge)
    per_node = data.draw(st.sampled_from([1, 2, ranks]), label="per_node")
    plan = emit(program, far=nodes(ranks, per_node))
    assert check_mscclpp.check(plan, expected_outputs(decisions)) == []
    assert check_mscclpp.check(plan) == []
    assert plan.protocol == protocol


def test_ports_join_nodes_and_memory_the_ranks_within() -> None:
    plan = emit(lower(ring_allreduce(4)), far=nodes(4, 2))
    assert [type(made).__struct_config__.tag for made in plan.gpus[0].channels] == ["memory", "port"]
    assert [made.connected_to for made in plan.gpus[0].channels] == [(1,), (3,)]
    assert names(plan, 1)["flush"] > 0, "rank 1 sends to the other node"
    assert names(plan, 0)["flush"] == 0
    assert names(plan, 1)["res"] == 0, "a port cannot send what it adds up"


def test_far_pairs_are_those_of_network_links() -> None:
    decisions = structs.replace(ring_allreduce(2), links=(LinkCost(0, 1, "nvlink", 1, 1), LinkCost(1, 0, "ib", 1, 1)))
    assert far_pairs(decisions) == {(1, 0)}
    plan = emit(lower(decisions), far=far_pairs(decisions))
    assert [type(made).__struct_config__.tag for made in plan.gpus[0].channels] == ["port"], "and the reverse"


def test_copies_go_straight_to_their_place_where_nothing_is_in_the_way() -> None:
    """A ring's second half overwrites, in place, what the ring itself has long passed on."""
    for inplace in (False, True):
        plan = emit(lower(ring_allreduce(4), inplace=inplace))
        assert plan.gpus[0].scratch_chunks == 2, "two slots for the sums"
        assert names(plan)["copy"] == 0


def test_sums_and_the_rest_go_through_slots_with_credits() -> None:
    """Swapped sums: the partner's share arrives while the own one is still to be sent."""
    plan = emit(lower(exchange_allreduce(4, 1), inplace=True))
    assert check_mscclpp.check(plan) == []
    found = names(plan)
    assert (found["re"] + found["res"], found["put"] + found["res"]) == (8, 8)
    assert plan.gpus[0].scratch_chunks == 2 * 2, "two slots for each of two partners"


def test_packets_need_no_signals() -> None:
    decisions = structs.replace(ring_allreduce(4), protocol="LL")
    found = names(emit(lower(decisions)))
    assert set(found) == {"ppkt", "respkt", "upkt", "rppkt"}


def test_a_sender_with_packets_hears_from_its_receiver() -> None:
    """Nothing ever comes back to the root of a broadcast: without a word it could be two calls ahead."""
    moves = [Move((0,), 0, 1), Move((0,), 1, 2)]
    plan = emit(lower(structs.replace(decide("broadcast", 3, moves, root=0), protocol="LL")))
    assert names(plan, 0) == {"copy": 1, "ppkt": 1, "rlxwait": 1}
    assert check_mscclpp.check(plan) == []


def test_relayed_packets_stay_packets() -> None:
    plan = emit(lower(structs.replace(line_alltoall(), protocol="LL"), fuse=False))
    assert names(plan, 1)["rppkt"] == 2
    assert names(plan, 1)["upkt"] == 2, "only what rank 1 keeps is unpacked"
    assert check_mscclpp.check(plan) == []


def test_irregular_collectives() -> None:
    decisions = irregular()
    plan = emit(lower(decisions))
    assert check_mscclpp.check(plan, expected_outputs(decisions)) == []
    wrong = dict.fromkeys(expected_outputs(decisions), ((0, 0),))
    assert check_mscclpp.check(plan, wrong) != []


def irregular() -> CollectiveDecisions:
    """Demands from one rank to two, through a relay."""
    base = decide("custom", 3, [Move((0,), 0, 1), Move((0,), 1, 2), Move((1,), 2, 0)])
    return structs.replace(base, demands=(Demand((0,), (2,)), Demand((2,), (0, 2))), root=None)


def test_long_threadblocks_are_cut_and_linked_by_barriers() -> None:
    program = lower(ring_allreduce(24))
    plan = emit(program)
    assert len(program.ranks[0].threadblocks) == 1
    assert len(plan.gpus[0].threadblocks) > 1
    assert all(len(block.ops) <= 64 for gpu in plan.gpus for block in gpu.threadblocks)
    assert names(plan)["barrier"] == 2 * (len(plan.gpus[0].threadblocks) - 1)
    assert plan.gpus[0].semaphores == ()
    assert check_mscclpp.check(plan) == []


def test_semaphores_link_what_barriers_cannot() -> None:
    plan = emit(lower(ring_allreduce(20, instances=7)))
    assert names(plan)["barrier"] == 2 * 16
    assert len(plan.gpus[0].semaphores) == names(plan)["sem_acquire"] > 0
    assert check_mscclpp.check(plan) == []


def test_threadblocks_are_joined_where_semaphores_run_out() -> None:
    """Every pair of threadblocks with a dependence takes a semaphore; one threadblock per rank takes none."""
    program = lower(random_algorithm("allreduce", 6, 2, 1, seed=4), fuse=False)
    plan = emit(program)
    assert len(plan.gpus[0].threadblocks) < len(program.ranks[0].threadblocks)
    assert check_mscclpp.check(plan) == []


def test_a_program_beyond_the_limits_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="16 semaphores of MSCCL\\+\\+"):
        emit(lower(ring_allreduce(20, instances=12)))


def test_every_plan_has_a_name_of_its_own() -> None:
    """The runtime keeps what it has set up by name."""
    plans = [emit(lower(ring_allreduce(3, instances=n), inplace=inplace)) for n in (1, 2) for inplace in (False, True)]
    assert len({plan.name for plan in plans}) == 4
    assert plans[0].name == emit(lower(ring_allreduce(3))).name


def test_golden_ring(golden) -> None:
    golden("mscclpp/allreduce_ring2.out.json", document.dumps(emit(lower(ring_allreduce(2)))))
    packets = structs.replace(ring_allreduce(2), protocol="LL")
    golden("mscclpp/allreduce_ring2_ll.out.json", document.dumps(emit(lower(packets, inplace=True))))


def test_packets_that_a_threadblock_only_keeps_tell_it_nothing() -> None:
    """Rank 1 keeps a part of rank 0 for rank 3, sends one of its own on to 4, and only then reads of rank 0 again: rank
    4, which sends to 0, has no signal of it and must wait for its signal."""
    routes = ((0, 1, 3), (0, 1, 2), (1, 2), (1, 2, 4), (4, 0))
    hops = [iter(pairwise(route)) for route in routes]
    moves = [Move((chunk,), *next(hops[chunk])) for chunk in (0, 2, 1, 3, 3, 1, 0, 4)]
    demands = tuple(Demand((route[0],), (route[-1],)) for route in routes)
    decisions = structs.replace(decide("custom", 5, moves), demands=demands, protocol="LL")
    plan = emit(lower(decisions))
    assert check_mscclpp.check(plan, expected_outputs(decisions)) == []
    assert names(plan, 4)["rlxwait"] == names(plan, 0)["rlxsignal"] == 1
