"""Messages timed by hand, in both latency modes, and the checker's word on them."""

from __future__ import annotations

from msgspec.structs import replace as with_fields

from tests.planner.passes.collective.build import MB, MESH, complete, line, ring
from treadle.codegen.collective.fitting import programs_of
from treadle.planner.passes.collective.bound import lower_bound
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.messages import Message, in_order, moves_of_messages, schedule
from treadle.planner.passes.collective.problem import build_problem
from treadle.planner.passes.collective.retime import algorithm_of
from treadle.planner.passes.collective.synthesis import Draft

L = 9_000  # ns: alpha 1 us and 8 us for a chunk of 1 MB


def planned(problem, messages):
    return decisions_of(Draft(problem, schedule(problem, messages), "by hand", "none"), None, None)


def test_a_message_waits_for_what_brings_its_chunks():
    problem = build_problem("broadcast", line(3), MESH, MB)
    decisions = planned(problem, [Message((0,), 0, 1), Message((0,), 1, 2)])
    assert [(m.send_ns, m.arrive_ns) for m in decisions.transfers] == [(0, L), (L, 2 * L)]
    assert check(decisions) == []


def test_chunks_of_one_message_share_alpha():
    problem = build_problem("broadcast", line(2), MESH, 2 * MB, chunkup=2)
    decisions = planned(problem, [Message((0, 1), 0, 1)])
    assert decisions.makespan_ns == 1_000 + 2 * 8_000
    assert {m.batch for m in decisions.transfers} == {0}
    assert check(decisions) == []


def test_pipelined_links_are_free_again_after_beta():
    hardware = with_fields(line(2), latency="pipelined")
    problem = build_problem("broadcast", hardware, MESH, 2 * MB, chunkup=2)
    decisions = planned(problem, [Message((0,), 0, 1), Message((1,), 0, 1)])
    assert [(m.send_ns, m.arrive_ns) for m in decisions.transfers] == [(0, L), (8_000, 17_000)]
    assert check(decisions) == []
    serial = with_fields(decisions, latency="serial")
    assert any("overlap" in finding for finding in check(serial))


def test_an_allreduce_of_one_chunk_goes_up_and_down_a_tree():
    problem = build_problem("allreduce", line(3), MESH, MB, roots=(1,))
    messages = [Message((0,), 0, 1, True), Message((0,), 2, 1, True), Message((0,), 1, 0), Message((0,), 1, 2)]
    decisions = planned(problem, messages)
    assert decisions.makespan_ns == 3 * L  # the two sums at rank 1 take turns, both links back work at once
    assert check(decisions) == []


def test_moves_keep_the_order_given():
    problem = build_problem("allgather", ring(4), MESH, MB)
    messages = [Message((c,), (c + k) % 4, (c + k + 1) % 4) for k in range(3) for c in range(4)]
    assert in_order(moves_of_messages(problem, messages)).makespan == 3 * L


def exchange(problem):
    """Four ranks of a complete machine in two rounds of exchanges."""
    pairs = [(0, 1), (2, 3), (0, 2), (1, 3)]
    return [m for a, b in pairs for m in (Message((0,), a, b, True), Message((0,), b, a, True, twin=True))]


def test_sums_are_exchanged_at_the_same_time():
    problem = build_problem("allreduce", complete(4), MESH, MB, roots=(0,))
    decisions = planned(problem, exchange(problem))
    assert decisions.makespan_ns == 2 * L
    assert check(decisions) == []
    assert lower_bound(problem).time_ns == 2 * L
    algorithm = algorithm_of(problem, decisions.transfers)
    assert sum(message.twin for message in algorithm.messages) == 4
    assert algorithm.time_ns(problem) == 2 * L
    assert algorithm.draft(problem, "again", "none").transfers == decisions.transfers


def test_a_sum_that_is_added_before_the_way_back_has_left_is_found():
    problem = build_problem("allreduce", complete(2), MESH, MB, roots=(0,))
    messages = [Message((0,), 0, 1, True), Message((0,), 1, 0, True, twin=True)]
    decisions = planned(problem, messages)
    assert check(decisions) == []
    there, back = decisions.transfers
    late = with_fields(back, send_ns=back.send_ns + 1, arrive_ns=back.arrive_ns + 1)
    found = check(with_fields(decisions, transfers=(there, late), makespan_ns=L + 1))
    assert any("still writes chunk 0" in finding for finding in found)


def test_exchanges_are_lowered_without_races():
    problem = build_problem("allreduce", complete(4), MESH, MB, roots=(0,))
    decisions = planned(problem, exchange(problem))
    assert set(programs_of(decisions, "exchange")) == {"allreduce", "allreduce_inplace"}  # checked as they are made
