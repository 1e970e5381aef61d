"""A memory plan as allocations: the peak is the exact one, and what stays is what the program leaves."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.treadle.runtime.models import plan_of
from treadle.planner.passes.memory.allocations import allocations


@pytest.mark.parametrize("share", [Fraction(1), "least"])
@pytest.mark.parametrize("name", ["gpt2", "convnet"])
def test_the_peak_is_that_of_the_byte_accurate_simulation(name, share):
    decisions = plan_of(name, share).decisions
    found = allocations(decisions)
    assert found.peak_bytes == decisions.exact_peak_bytes
    assert found.events[-1].time_ns == decisions.objective_ns
    assert {"recomputed"} & {block.category for block in found.blocks} == (
        {"recomputed"} if share == "least" else set()
    )


def test_what_stays_allocated_is_resident_or_a_gradient():
    found = allocations(plan_of("gpt2").decisions)
    left = {event.block for event in found.events} - {event.block for event in found.events if event.freed}
    resident = {*plan_of("gpt2").decisions.problem.base, "live gradients"}
    assert {found.blocks[index].category for index in left} <= resident
