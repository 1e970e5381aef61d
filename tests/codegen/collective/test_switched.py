"""Shares of switches: whole ranges of the buffers, and a clear refusal by everything that sends messages."""

from __future__ import annotations

import pytest
from msgspec import structs

from tests.planner.passes.collective.build import MESH, in_network
from treadle.codegen.collective.cuda import kernels
from treadle.codegen.collective.expected import expected_outputs
from treadle.codegen.collective.fitting import fitted
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.switched import SwitchShare, switch_shares, switched_timeline
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.nvls import synthesize
from treadle.planner.passes.collective.synthesis import Request


def decided(collective, ranks: int, size: int, root: int = 0) -> CollectiveDecisions:
    request = Request(collective, in_network(ranks), MESH, size, root)
    return decisions_of(synthesize(request, Effort()), None, None)


ALL = (0, 1, 2)


@pytest.mark.parametrize(
    ("collective", "shares"),
    [
        ("allreduce", [(r, ("reduce", "multicast"), ("i", 4 * r), ("o", 4 * r), 4) for r in ALL]),
        ("reducescatter", [(r, ("reduce",), ("i", r), ("o", 0), 1) for r in ALL]),
        ("allgather", [(r, ("multicast",), ("i", 0), ("o", r), 1) for r in ALL]),
        ("reduce", [(2, ("reduce",), ("i", 0), ("o", 0), 1)]),
        ("broadcast", [(2, ("multicast",), ("i", 0), ("o", 0), 1)]),
    ],
)
def test_every_rank_does_one_range(collective, shares):
    decisions = decided(collective, 3, 3 * 2048, root=2 if collective in ("reduce", "broadcast") else 0)
    assert decisions.chunkup == (4 if collective == "allreduce" else 1)
    expected = [SwitchShare(rank, ops, ALL, source, target, count) for rank, ops, source, target, count in shares]
    assert list(switch_shares(decisions)) == expected


def test_a_chunk_that_passes_twice_has_no_share():
    decisions = decided("allreduce", 3, 96)
    with pytest.raises(
        InputError, match="chunk 0 passes switches several times, expected one reduce and one multicast"
    ):
        switch_shares(structs.replace(decisions, switched=(*decisions.switched, decisions.switched[0])))


def test_outputs_come_from_the_rank_that_multicasts():
    found = expected_outputs(decided("allgather", 3, 96))
    assert found[0, 2] == ((2, 0),)


@pytest.mark.parametrize(
    ("collective", "hint"), [("allreduce", "cuda or mscclpp-json, or plan"), ("reduce", "say; plan")]
)
def test_programs_of_messages_refuse_it(collective, hint):
    decisions = decided(collective, 3, 96)
    for target in ("msccl-xml", "cuda") if collective == "reduce" else ("msccl-xml",):
        with pytest.raises(
            InputError, match=f"switch fabric adds up or multicasts, which no program .*{hint}"
        ) as error:
            fitted(decisions, "a.plan.json", target)
        assert error.value.where == "a.plan.json"
    with pytest.raises(InputError, match="no program of messages"):
        lower(decisions)


def test_texts_in_the_form_of_mscclpp_out_of_place_and_in_place():
    made = fitted(decided("allreduce", 3, 96), "a.plan.json", "mscclpp-json", call_bytes=(1, 96))
    assert sorted(made.texts) == ["allreduce.json", "allreduce_inplace.json"]
    assert '"max_message_size": 96' in made.texts["allreduce.json"]


def test_cuda_has_the_kernels_over_symmetric_memory_and_nothing_of_messages():
    made = fitted(decided("allreduce", 3, 96), "a.plan.json", "cuda")
    assert (made.texts, made.programs) == (kernels.symmetric(), {})


def test_the_timeline_has_every_step():
    decisions = decided("allreduce", 3, 96)
    timeline = switched_timeline(decisions)
    assert timeline.schedule.makespan == decisions.makespan_ns
    assert [resource.name for resource in timeline.resources][:2] == ["rank 0 multicast", "rank 0 reduce"]
    assert len(timeline.tasks) == 6
