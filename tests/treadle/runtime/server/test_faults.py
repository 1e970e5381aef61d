"""What follows from the loss of a worker, without any."""

from __future__ import annotations

import pytest

from treadle.planner.errors import CheckFailed
from treadle.runtime.server.faults import Attendance


def here(waits: bool, count: int = 2) -> Attendance:
    found = Attendance(range(4, 4 + count), waits)
    for worker in found.workers:
        assert found.join(worker, 1) is None
    return found


def test_without_rejoin_the_first_loss_ends_the_job() -> None:
    found = here(waits=False)
    notice = found.lose(5, 7, "its connection ended")
    assert notice is not None
    assert (notice.worker, notice.step, notice.waits) == (5, 7, False)
    assert found.failed == notice.text == "worker 5 is lost in step 7 (its connection ended)"
    assert found.lose(5, 7, "again") is None
    with pytest.raises(CheckFailed, match="worker 5 is lost in step 7"):
        found.join(5, 7)


def test_with_rejoin_a_lost_worker_comes_back() -> None:
    found = here(waits=True)
    assert found.lose(4, 7, "its connection ended") is not None
    assert found.late(4, 7) is None  # known
    back = found.join(4, 7)
    assert back is not None
    assert (back.what, back.text) == ("rejoined", "worker 4 is back in step 7")
    assert found.failed is None


def test_only_workers_of_the_plan_join_and_only_once() -> None:
    found = here(waits=True)
    with pytest.raises(CheckFailed, match="not among the workers 4 to 5"):
        found.join(3, 1)
    with pytest.raises(CheckFailed, match="worker 4 is connected already"):
        found.join(4, 1)


def test_a_step_that_waits_names_whom_it_waits_for() -> None:
    found = Attendance(range(2), waits=True)
    found.join(0, 1)
    assert [notice and notice.text for notice in (found.late(0, 1), found.late(1, 1))] == [
        "step 1 waits for worker 0, which is slow",
        "step 1 waits for worker 1, which has not connected",
    ]
    found.leave(0)
    assert found.late(0, 3) is not None
    assert found.failed == "step 3 waits for worker 0, which has left the job"


def test_who_goes_before_it_has_trained_is_still_awaited() -> None:
    found = here(waits=False)
    found.leave(4)
    found.leave(5, trained=False)
    assert not found.all_left
    late = found.late(5, 1)
    assert late is not None
    assert late.text == "step 1 waits for worker 5, which has not connected"
    assert found.join(5, 1) is None


def test_all_have_left_when_the_last_one_has() -> None:
    found = here(waits=False)
    seen = []
    for worker in (4, 5):
        found.leave(worker)
        seen.append(found.all_left)
    assert found.join(5, 9) is None
    assert [*seen, found.all_left] == [False, True, False]
