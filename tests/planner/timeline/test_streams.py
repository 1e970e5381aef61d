"""Streams: cases worked by hand."""

from __future__ import annotations

import pytest

from treadle.planner.errors import InputError
from treadle.planner.timeline.streams import ByteStream, run_streams


def ends(*streams: ByteStream) -> list[float]:
    return run_streams(streams).end_us


def test_streams_of_one_resource_share_it_and_the_rest_is_left_to_those_that_go_on() -> None:
    link = (("link", 1.0),)
    assert ends(ByteStream("a", 10, link), ByteStream("b", 20, link)) == pytest.approx([20, 30])


def test_what_is_slow_elsewhere_leaves_its_share_to_others() -> None:
    """`a` alone is held by its own resource to half its speed, so that `b` has three quarters of the link."""
    slow = ByteStream("a", 10, (("link", 0.5), ("own", 2.0)))
    assert ends(slow, ByteStream("b", 7.5, (("link", 1.0),))) == pytest.approx([20, 10])


def test_four_ranks_on_two_cores_take_twice_as_long() -> None:
    streams = [ByteStream(f"{rank}", 10, ((f"rank {rank}", 1.0), ("cores", 0.5))) for rank in range(4)]
    times = run_streams(streams)
    assert times.end_us == pytest.approx([20] * 4)
    assert times.busy_us["cores"] == pytest.approx(20)
    assert times.busy_us["rank 0"] == pytest.approx(10)


def test_a_follower_stays_a_piece_behind() -> None:
    """Equal speeds: one piece later. A slower one ends on its own time, a faster one a piece after what it follows."""
    first = ByteStream("in", 100, piece=0.1)
    for work, end in ((100, 110), (300, 310), (50, 105)):
        assert ends(first, ByteStream("out", work, follows=0)) == pytest.approx([100, end])


def test_a_follower_of_one_piece_starts_when_all_is_there() -> None:
    assert ends(ByteStream("in", 100), ByteStream("out", 50, follows=0, delay_us=7)) == pytest.approx([100, 157])


def test_latency_delays_the_start_and_the_end() -> None:
    streams = (ByteStream("in", 100, piece=0.1), ByteStream("out", 50, follows=0, delay_us=20))
    times = run_streams(streams)
    assert times.start_us[1] == pytest.approx(30)
    assert times.end_us[1] == pytest.approx(125)


def test_a_chain_of_followers_fills_piece_by_piece() -> None:
    chain = [ByteStream(f"{hop}", 100, piece=0.1, follows=hop - 1 if hop else None) for hop in range(5)]
    assert ends(*chain) == pytest.approx([100, 110, 120, 130, 140])


def test_a_follower_that_shares_a_thread_with_what_it_follows_halves_both() -> None:
    thread = (("thread", 1.0),)
    found = ends(ByteStream("in", 100, thread, piece=0.1), ByteStream("out", 100, thread, follows=0))
    assert found == pytest.approx([190, 200])


def test_a_held_follower_slows_with_what_holds_it() -> None:
    """`in` shares the link with `other`; `out` has a resource of its own, but has to wait for `in`."""
    link = (("link", 1.0),)
    streams = (
        ByteStream("in", 100, link, piece=0.1),
        ByteStream("other", 100, link),
        ByteStream("out", 20, (("thread", 1.0),), follows=0),
    )
    assert ends(*streams) == pytest.approx([200, 200, 202])


def test_a_queue_serves_in_the_order_of_readiness() -> None:
    streams = (
        ByteStream("wait", 5),
        ByteStream("late", 10, after=(0,), queue="pair"),
        ByteStream("early", 10, queue="pair"),
    )
    assert ends(*streams) == pytest.approx([5, 20, 10])


def test_a_stream_without_work_ends_at_once() -> None:
    found = ends(ByteStream("a", 0), ByteStream("b", 3, after=(0,)), ByteStream("c", 0, follows=1))
    assert found == pytest.approx([0, 3, 3], abs=1e-4)


def test_a_stream_without_work_follows_another_piece_by_piece() -> None:
    chain = (ByteStream("a", 10, piece=0.1), ByteStream("b", 0, follows=0, piece=0.1), ByteStream("c", 5, follows=1))
    assert ends(*chain) == pytest.approx([10, 10, 10.5], abs=0.5)


def test_streams_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(InputError, match="2 streams wait for each other, a among them"):
        run_streams([ByteStream("a", 1, after=(1,)), ByteStream("b", 1, after=(0,))])
