"""Ranges of NCCL's own best: exact, without holes, and cut where ours end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.planner.machine.machines import profile
from treadle.planner.machine.nccl import NcclMachine, best, call_bytes, candidates, library_of
from treadle.planner.passes.collective.rivals import MOST_BYTES, rivals


@pytest.mark.parametrize(("name", "nodes"), [("ndv5", 1), ("ndv4", 2), ("dgx1", 1), ("ndv2", 4)])
@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
def test_the_best_is_the_same_throughout_a_range_and_another_in_the_next(name, nodes, collective):
    machine = profile(name, nodes)
    library = library_of(machine)
    assert isinstance(library, NcclMachine)
    found = candidates(library, collective)
    made = rivals(machine, collective, [], lambda size: None)
    assert (made[0].min_bytes, made[-1].max_bytes) == (0, MOST_BYTES)
    for rival in made:
        low, high = rival.min_bytes, rival.max_bytes
        for part in range(17):
            size = low + (high - low) * part // 16
            least = best(found, call_bytes(collective, library.ranks, size))
            assert (least.algorithm, least.protocol) == (rival.algorithm, rival.protocol), size
    for one, other in pairwise(made):
        assert other.min_bytes == one.max_bytes + 1
        assert (one.algorithm, one.protocol) != (other.algorithm, other.protocol)


def test_ranges_end_where_ours_do_and_have_our_time():
    made = rivals(profile("ndv5"), "allreduce", [1000, 5000], lambda size: 7.0 if 1000 <= size < 5000 else None)
    ours = [rival for rival in made if rival.plan_us is not None]
    assert [(rival.min_bytes, rival.max_bytes) for rival in ours] == [(1000, 4999)]
    assert ours[0].plan_us == (7.0, 7.0)
    assert ours[0].gains[0] == pytest.approx(ours[0].time_us[0] / 7)


def test_there_are_none_on_cpus_and_for_what_nccl_has_no_choice():
    assert rivals(profile("hosts-2x2"), "allreduce", [], lambda size: None) == ()
    assert rivals(profile("ndv5"), "alltoall", [], lambda size: None) == ()
