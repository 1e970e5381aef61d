"""Idle spans of recorded and modelled iterations, and the problem that they and a profile make."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.checkpoint.steps import step
from treadle.planner.documents.hardware import CopyEngine, Device, Hardware, Host, Network, Uplink
from treadle.planner.documents.trace import Costs, Op, Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.checkpoint.extract import CheckpointSetup, domains_of, link_of, problem_of, state_bytes_of
from treadle.planner.passes.checkpoint.modelled import BUCKET, modelled, ring
from treadle.planner.passes.checkpoint.recorded import recorded
from treadle.planner.passes.checkpoint.spans import Iteration, Sending, timeline_of, unsteady

MIB = 2**20


def iteration(*messages: tuple[int, int], update: int = 100) -> Iteration:
    return Iteration(tuple(Sending("allreduce", *times) for times in messages), update, update + 10)


def spans(machines: list[list[Iteration]], alpha_ns: int = 0) -> list[tuple[str, str, int]]:
    found = timeline_of(machines, alpha_ns, "profile")
    return [(span.after, span.before, span.length_ns) for span in found.spans]


def test_spans_are_the_gaps_between_messages_from_begin_to_update() -> None:
    found = timeline_of([[iteration((10, 30), (50, 80))]], 0, "profile")
    assert [(span.after, span.before, span.length_ns) for span in found.spans] == [
        ("begin", "allreduce 0", 10), ("allreduce 0", "allreduce 1", 20), ("allreduce 1", "update", 20),
    ]  # fmt: skip
    assert [(each.name, each.start_ns, each.end_ns) for each in found.messages] == [
        ("allreduce 0", 10, 30), ("allreduce 1", 50, 80),
    ]  # fmt: skip
    assert found.iteration_ns == 110


def test_messages_that_overlap_or_leave_a_latency_between_them_are_one() -> None:
    assert spans([[iteration((10, 30), (20, 25), (32, 60))]], alpha_ns=2) == [
        ("begin", "allreduce 2", 10), ("allreduce 2", "update", 40),
    ]  # fmt: skip
    assert spans([[iteration((0, 100))]]) == [("allreduce 0", "update", 0)]


def test_a_span_is_the_mean_over_iterations_of_the_machine_with_the_least() -> None:
    slow, fast = [iteration((10, 30)), iteration((30, 50))], [iteration((12, 20)), iteration((14, 22))]
    found = timeline_of([slow, fast], 0, "profile")
    assert [(span.length_ns, span.spread_ns) for span in found.spans] == [(13, 1), (60, 10)]
    assert unsteady(found.spans, 900_000) == 1
    assert unsteady(found.spans, 800_000) == 0


def test_iterations_with_other_messages_are_refused() -> None:
    other = Iteration((Sending("broadcast", 10, 30),), 100, 110)
    with pytest.raises(InputError, match="profile: found broadcast as message 0 in iteration 1, expected allreduce"):
        timeline_of([[iteration((10, 30)), other]], 0, "profile")
    with pytest.raises(InputError, match="found 2 messages in iteration 1, expected 1 as in the first"):
        timeline_of([[iteration((10, 30))], [iteration((10, 30), (40, 50))]], 0, "profile")


def op(start: int, time: int, phase: Any, ranks: str | None = None) -> Op:
    comm = None if ranks is None else {"collective": "allreduce", "ranks": ranks}
    return Op(id=f"{start}", target="op", phase=phase, start_ns=start, time_ns=time, comm=comm)


def profile(*ops: Op) -> Trace:
    return Trace(
        version=1, name="step", mode="train", source="kineto", costs=Costs(model="recorded"), tensors=(), ops=ops
    )


def test_a_profile_shows_messages_between_machines_until_the_update() -> None:
    seen = profile(
        op(0, 5, "optimizer"), op(5, 20, "forward"), op(25, 40, "backward"), op(30, 10, "unknown", "[0, 1]"),
        op(50, 25, "unknown", "[0, 1, ..., 7]"), op(80, 10, "optimizer"), op(85, 20, "unknown", "[0, 1, ..., 7]"),
    )  # fmt: skip
    assert recorded(seen, 2) == Iteration((Sending("allreduce", 50, 75),), 80, 105)
    assert len((recorded(seen, 1) or iteration()).messages) == 2
    assert recorded(profile(op(0, 5, "forward")), 2) is None


def test_a_step_without_messages_has_those_of_its_gradients_in_buckets() -> None:
    given = step(2 * MIB, BUCKET - 4, 4, 8)
    assert modelled(given, lambda size: size // MIB) == Iteration(
        (Sending("allreduce", 15, 17), Sending("allreduce", 25, 50), Sending("allreduce", 50, 50)), 50, 57
    )
    assert state_bytes_of(given) == 2 * (27 * MIB + 8)
    assert state_bytes_of(step(8, optimizer=False)) == 8
    with pytest.raises(InputError, match="found no gradients of parameters"):
        modelled(step(), lambda size: size)


CLUSTER = Hardware(
    version=1, name="cluster", nodes=4, devices=(Device(model="A100", kind="gpu", count=2),),
    host=Host(memory_bytes=2**40),
    copy_engines=(CopyEngine(direction="device-to-host", bandwidth=3e10),),
    network=Network(kind="ib", alpha_us=2.0, beta_us_per_MB=83.88608),
)  # fmt: skip
"""Each device its own NIC of 12.5 GB/s, of which messages reach 80 %."""


def racks(*, beta: float) -> Hardware:
    uplinks = tuple(Uplink(name=f"rack {row}", nodes=(2 * row, 2 * row + 1), beta_us_per_MB=beta) for row in (0, 1))
    return replace(CLUSTER, network=replace(CLUSTER.network, uplinks=uplinks))


def test_a_profile_gives_links_copy_rate_memory_and_racks() -> None:
    given = problem_of("job", CLUSTER, 10**9)
    assert (given.machines, given.devices, given.alpha_ns, given.link_rate) == (4, 2, 2000, 10**10)
    assert (given.copy_rate, given.host_bytes, given.domains) == (3 * 10**10, 2**40, ())
    assert given.failures_per_day == pytest.approx(0.06)
    assert domains_of(racks(beta=1.0), None) == (0, 0, 1, 1)
    assert domains_of(CLUSTER, 3) == (0, 0, 0, 1)
    assert domains_of(racks(beta=1.0), 1) == ()


def test_machines_of_a_rack_share_its_uplink() -> None:
    assert link_of(racks(beta=1.0)) == link_of(CLUSTER)
    assert link_of(racks(beta=4 * 83.88608))[1] == link_of(CLUSTER)[1] // 16


def test_without_a_timeline_an_iteration_is_as_long_as_a_checkpoint() -> None:
    given = problem_of("job", CLUSTER, 10**9, setup=CheckpointSetup(copies=3))
    assert given.iteration_ns == given.spans[0].length_ns
    assert given.iteration_ns == pytest.approx(2 * (10**9 / 10**10) * 10**9, rel=0.001)


def test_a_ring_goes_around_the_devices_of_a_node_and_the_nodes() -> None:
    alone = replace(CLUSTER, devices=(Device(model="A100", kind="gpu", count=1),))
    assert ring(alone)(4 * MIB) == round(6 * (2000 + 83886.08 / 0.8))
    assert ring(replace(alone, nodes=1))(MIB) == 0


def test_a_problem_that_is_not_sound_is_refused() -> None:
    with pytest.raises(InputError, match=r"job: copies: found 5, expected at most 4"):
        problem_of("job", CLUSTER, 10**9, setup=CheckpointSetup(copies=5))
