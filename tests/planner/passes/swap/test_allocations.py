"""A swap plan as allocations: the plan's peak, at the plan's addresses, where no two tensors overlap."""

from __future__ import annotations

import pytest

from tests.treadle.runtime.swap.steps import plan_of
from treadle.planner.passes.swap.allocations import allocations

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("changes", [{}, {"shuffled": True}, {"early": True}])
def test_the_peak_is_the_plans_and_addresses_are_apart(changes):
    decisions = plan_of("mlp", **changes).decisions
    found = allocations(decisions)
    assert found.peak_bytes == decisions.peak_bytes
    assert any(block.inside.startswith("in ") for block in found.blocks)
    used: dict[int, tuple[int, int]] = {}
    for event in found.events:
        block = found.blocks[event.block]
        begin, end = block.address, block.address + block.bytes
        if event.freed:
            del used[event.block]
        else:
            assert all(end <= first or last <= begin for first, last in used.values())
            used[event.block] = begin, end


def test_what_stays_is_what_the_plan_leaves_on_the_device():
    decisions = plan_of("mlp").decisions
    found = allocations(decisions)
    left = {event.block for event in found.events} - {event.block for event in found.events if event.freed}
    final = {decisions.problem.tensors[resident.tensor].id for resident in decisions.final}
    assert final <= {found.blocks[index].name for index in left}
