"""Plans on switch channels: accepted by the checker, of the form of MSCCL++'s own sample, and refused where it has no
operation."""

from __future__ import annotations

from itertools import chain

import pytest
from msgspec import structs

from tests.codegen.collective.test_switched import decided
from treadle.codegen.collective.expected import expected_outputs
from treadle.codegen.collective.mscclpp import check as check_mscclpp
from treadle.codegen.collective.mscclpp import document
from treadle.codegen.collective.mscclpp.document import ExecutionPlan, PlanOperation
from treadle.codegen.collective.mscclpp.in_switch import BLOCKS, emit
from treadle.planner.errors import InputError


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast"])
def test_the_checker_accepts_it(collective: str, inplace: bool) -> None:
    for ranks, size in ((2, 64), (3, 6144)):
        decisions = decided(collective, ranks, size)
        plan = emit(decisions, inplace=inplace)
        assert check_mscclpp.check(plan, expected_outputs(decisions)) == []
        assert document.loads(document.dumps(plan), "plan") == plan


def test_a_root_of_its_own() -> None:
    decisions = decided("broadcast", 3, 64, root=2)
    plan = emit(decisions, inplace=False)
    assert check_mscclpp.check(plan, expected_outputs(decisions)) == []
    assert [any(op.name == "gstore" for op in ops(plan, rank)) for rank in range(3)] == [False, False, True]


def ops(plan: ExecutionPlan, rank: int) -> list[PlanOperation]:
    return list(chain.from_iterable(block.ops for block in plan.gpus[rank].threadblocks))


def without(plan: ExecutionPlan, names: set[str], rank: int = 0) -> ExecutionPlan:
    """The plan in which a rank lacks operations."""
    gpu = plan.gpus[rank]
    blocks = tuple(
        structs.replace(block, ops=tuple(op for op in block.ops if op.name not in names)) for block in gpu.threadblocks
    )
    gpus = list(plan.gpus)
    gpus[rank] = structs.replace(gpu, threadblocks=blocks)
    return structs.replace(plan, gpus=tuple(gpus))


# Each part of the protocol is needed: what the checker finds without it.
@pytest.mark.parametrize(
    ("names", "finding"),
    [
        ({"rlxwait"}, "may not have begun the call"),
        ({"wait"}, "may end the call while"),
        ({"barrier"}, "nop is missing"),
        ({"glres"}, "output chunk 0 of gpu 0 ends as nothing"),
    ],
)
def test_nothing_can_be_left_out(names: set[str], finding: str) -> None:
    decisions = decided("allreduce", 2, 64)
    found = check_mscclpp.check(without(emit(decisions, inplace=False), names), expected_outputs(decisions))
    assert any(finding in each for each in found), found


def test_what_mscclpp_cannot_do_is_refused() -> None:
    for collective in ("reduce", "reducescatter"):
        with pytest.raises(InputError, match=f"{collective} adds up in the switch for one rank alone, which MSCCL"):
            emit(decided(collective, 3, 96), inplace=False)


def test_many_ranks_meet_on_the_channels_of_all_threadblocks() -> None:
    plan = emit(decided("broadcast", 40, 64), inplace=False)
    met = [len(block.channels[0].channel_ids) for block in plan.gpus[0].threadblocks]
    assert (len(met), sum(met), max(met)) == (BLOCKS, 39, 3)
    assert check_mscclpp.check(plan) == []


def test_calls_of_some_sizes_only() -> None:
    plan = emit(decided("allreduce", 2, 64), inplace=True, call_bytes=(32, 64))
    assert (plan.min_message_size, plan.max_message_size, plan.inplace) == (32, 64, True)


def test_golden(golden) -> None:
    golden("mscclpp/allreduce_nvls2.out.json", document.dumps(emit(decided("allreduce", 2, 64), inplace=False)))
