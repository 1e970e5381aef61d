"""Schedules whose ranks are on several hosts, played by loopback addresses: right results over TCP in every protocol,
and a rank that ends takes the others with it, by name."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest

from benchmarks.fusion import reachable
from benchmarks.fusion.reachable import CASES
from benchmarks.fusion.stress import cases
from tests.codegen.fusion.random_schedules import schedules
from tests.planner.passes.fusion.by_hand import pipeline, sgd
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.planner.errors import CheckFailed, InputError, TreadleError
from treadle.planner.passes.fusion.evaluate import evaluate
from treadle.planner.passes.fusion.program import Bindings
from treadle.planner.passes.fusion.rounding import intervals
from treadle.runtime.fusion import processes
from treadle.runtime.fusion.build import Compiled, build
from treadle.runtime.fusion.data import differences, exact, example, place
from treadle.runtime.fusion.hosts import join
from treadle.runtime.fusion.rendezvous import Rendezvous, RendezvousAddress
from treadle.runtime.fusion.runs import Runs
from treadle.runtime.fusion.session import HERE, FusionSession
from treadle.runtime.fusion.tensors import Tensors

REPEATS = 3
AT_ONCE, RANDOM = 8, 3
"""Programs for which processes are started once, and random ones on each layout of hosts."""


def wrong(made: Sequence[Lowered], hosts: str, runs: Runs | None = None) -> list[str]:
    """What differs from the interpreter after `made` have run, each rank on the host that its letter names."""
    runs = runs or Runs(repeats=REPEATS, timeout=20)
    problems = []
    for first in range(0, len(made), AT_ONCE):
        some = made[first : first + AT_ONCE]
        values = [_values(lowered) for lowered in some]
        tensors = [_filled(lowered, each, runs.repeats) for lowered, each in zip(some, values, strict=True)]
        jobs = [(build(lowered, "process", quickly=True), each) for lowered, each in zip(some, tensors, strict=True)]
        processes.run_each(jobs, runs, hosts=[_address(letter) for letter in hosts])
        for lowered, each, steps in zip(some, tensors, values, strict=True):
            problems += [f"{lowered.program.name}: {line}" for line in _differences(lowered, each, steps, runs.repeats)]
            each.close()
    return problems


def _address(letter: str) -> str:
    return f"127.0.0.{ord(letter) - ord('a') + 1}"


def _values(lowered: Lowered) -> Any:
    program, bindings = lowered.program, lowered.bindings
    values = evaluate(program, bindings, example(program, bindings), seed=0, step=0)
    return values, None if exact(program) else intervals(program, bindings, values, seed=0, step=0)


def _filled(lowered: Lowered, values: Any, repeats: int) -> Tensors:
    world = lowered.bindings.ranks * lowered.bindings.groups
    tensors = Tensors(lowered.buffers, world * repeats, shared=True)
    tensors.poison()
    for number in range(repeats):
        place(tensors, range(number * world, (number + 1) * world), lowered, values[0])
    return tensors


def _differences(lowered: Lowered, tensors: Tensors, values: Any, repeats: int) -> list[str]:
    """Of all runs; of the first one where every run draws other random numbers."""
    world = lowered.bindings.ranks * lowered.bindings.groups
    draws = any(node.op == "Dropout" for node in lowered.program.nodes)
    rows = [range(number * world, (number + 1) * world) for number in range(1 if draws else repeats)]
    return [line for row in rows for line in differences(tensors, row, lowered, *values)]


@pytest.mark.parametrize("hosts", ["abcd", "abab"])
def test_every_bit_is_right_over_tcp_under_random_pauses(hosts: str) -> None:
    lowered = lower(sgd("fused"), Bindings({"N": 1001}, 4), slot_bytes=256)
    assert wrong([lowered], hosts, Runs(repeats=6, order=3, timeout=20)) == []


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_every_protocol_and_size_is_right_over_tcp(protocol: Any) -> None:
    made = [
        lower(sgd("fused"), Bindings({"N": elements}, ranks), slot_bytes=256, protocol=protocol, channels=channels)
        for ranks, elements, channels in ((3, 0, 1), (3, 2, 2), (3, 100_003, 2))
    ]
    assert wrong(made, "aba") == []
    assert wrong([lower(sgd("fused"), Bindings({"N": 5}, 1), protocol=protocol)], "a") == []


@pytest.mark.slow
def test_groups_on_different_hosts_send_to_the_next_group() -> None:
    assert wrong([lower(pipeline("rs cp ag"), Bindings({"B": 1, "S": 5, "H": 3}, 2, 2))], "abcd") == []
    assert wrong([lower(pipeline("rs cp ag"), Bindings({"B": 1, "S": 5, "H": 3}, 2, 2))], "aabb") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_schedules_of_the_examples_are_right_over_tcp(name: str) -> None:
    """The last two that are derived, which have most kernels fused and overlapped; protocols by turns."""
    case, found, number = CASES[name], [], list(CASES).index(name)
    for schedule in list(reachable.schedules(case))[-24:]:
        protocol: Any = ("Simple", "LL", "LL128")[(number + len(found)) % 3]
        try:
            found.append(lower(schedule, case.bindings(2), channels=2, slot_bytes=64, protocol=protocol))
        except TreadleError:
            continue
    assert found
    assert wrong(found[-2:], "abcd"[: 2 * case.groups]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
def test_overlapped_kernels_are_right_over_tcp(name: str) -> None:
    lowered = cases()[name].lowered()
    world = lowered.bindings.ranks * lowered.bindings.groups
    assert wrong([lowered], "".join(letter for letter, _ in zip(cycle("aab"), range(world), strict=False))) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "hosts"), [(0, "abc"), (1, "aab"), (2, "aba")])
def test_random_schedules_over_tcp(number: int, hosts: str) -> None:
    assert wrong(schedules(number, RANDOM, (3,), sends=True), hosts) == []


def test_messages_between_hosts_take_the_latency_of_a_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reducescatter on a ring of two hosts: at least one message each way."""
    lowered = lower(sgd("fused"), Bindings({"N": 1001}, 2))
    compiled = build(lowered, "process", quickly=True)
    monkeypatch.setenv("TREADLE_LATENCY_US", "40000")
    tensors = Tensors(lowered.buffers, 2, shared=True)
    near, far = (
        min(processes.run(compiled, tensors, Runs(repeats=2, timeout=20), hosts=hosts).seconds)
        for hosts in (["127.0.0.1"] * 2, ["127.0.0.1", "127.0.0.2"])
    )
    tensors.close()
    assert near < 0.04 <= far


def test_a_latency_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_LATENCY_US", "soon")
    lowered = lower(sgd("fused"), Bindings({"N": 1001}, 2))
    tensors = Tensors(lowered.buffers, 2, shared=True)
    with pytest.raises(InputError, match="TREADLE_LATENCY_US: found 'soon', expected microseconds"):
        processes.run(build(lowered, "process", quickly=True), tensors, hosts=["127.0.0.1", "127.0.0.2"])
    tensors.close()


def test_ranks_on_hosts_that_share_no_named_interface_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host has a loopback interface of its own."""
    compiled = build(lower(sgd("fused"), Bindings({"N": 1001}, 2)), "process", quickly=True)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    session = FusionSession(compiled.path, 2, {0: HERE})
    with pytest.raises(InputError, match="GLOO_SOCKET_IFNAME: found ranks on several hosts"):
        join(session, 0, lambda value: [value, (("127.0.0.1", "another host"), value[1])])
    session.close()


@pytest.mark.parametrize(("hosts", "victim"), [("aabb", 2), ("aaaa", 0)])
def test_a_killed_rank_ends_the_others_by_name(hosts: str, victim: int) -> None:
    """Nobody watches these processes; ranks of one host are watched by the others, too."""
    lowered = lower(sgd("fused"), Bindings({"N": 1001}, 4), slot_bytes=256)
    compiled = build(lowered, "process", quickly=True)
    seconds, ended = after_death(compiled, hosts, victim, 0.3)
    assert sorted(ended) == sorted({0, 1, 2, 3} - {victim})
    assert seconds < 5
    for message, _ in ended.values():
        assert message == f"rank {victim} has ended before it was done"
    lines = [line for _, findings in ended.values() for line in findings]
    assert any("fused_reducescatter" in line or "waits for" in line for line in lines)


def test_a_wait_beyond_its_limit_ends_the_runs_on_all_hosts() -> None:
    """Rank 0 has a limit, rank 1 has none, rank 2 does not run: rank 1 waits on another host for a rank of its own."""
    lowered = lower(sgd("fused"), Bindings({"N": 1001}, 3), slot_bytes=256)
    compiled = build(lowered, "process", quickly=True)
    context = multiprocessing.get_context("fork")
    place, pipes = RendezvousAddress(), [context.Pipe() for _ in range(3)]
    ranks = [
        context.Process(target=_run_until, args=(rank, compiled, place, letter, pipes[rank][1]))
        for rank, letter in enumerate("abb")
    ]
    for process in ranks:
        process.start()
    assert all(here.poll(30) for here, _ in pipes[:2])
    pipes[2][0].send("run now")
    said = [here.recv() for here, _ in pipes if here.poll(30)]
    for process in ranks:
        process.join(10)
    assert said == ["the schedule does not end: rank 0 waited longer than its limit"] * 3


def _run_until(rank: int, compiled: Compiled, place: RendezvousAddress, letter: str, pipe: Any) -> None:
    meeting = Rendezvous(place, rank, compiled.ranks)
    tensors = Tensors(compiled.buffers, compiled.ranks)
    session = FusionSession(compiled.path, compiled.ranks, {rank: HERE})
    join(session, rank, meeting.exchange, _address(letter))
    session.bind({rank: tensors.addresses(rank)}, keep=tensors)
    if rank == 2:
        pipe.recv()
    try:
        session.run(timeout=0 if rank else 0.3)
        session.wait()
    except CheckFailed as error:
        pipe.send(str(error).partition(";")[0])
    meeting.exchange()
    session.close()


def after_death(
    compiled: Compiled, hosts: str, victim: int, delay: float
) -> tuple[float, dict[int, tuple[str, tuple[str, ...]]]]:
    """Kill a rank `delay` seconds into its runs; the seconds until all others have ended, and what they say."""
    context = multiprocessing.get_context("spawn")
    place, pipes, ranks = RendezvousAddress(), [], []
    for rank, letter in enumerate(hosts):
        receive, send = context.Pipe(duplex=False)
        given = (rank, len(hosts), compiled, place, _address(letter), send)
        ranks.append(context.Process(target=_run_for_ever, args=given))
        ranks[-1].start()
        send.close()
        pipes.append(receive)
    assert all(pipe.poll(60) and pipe.recv() == "ready" for pipe in pipes)
    time.sleep(delay)
    ranks[victim].kill()
    killed, ended = time.monotonic(), {}
    for rank, pipe in enumerate(pipes):
        if rank != victim and pipe.poll(10):
            ended[rank] = pipe.recv()
    seconds = time.monotonic() - killed
    for process in ranks:
        process.join(10)
        process.kill()
    return seconds, ended


def _run_for_ever(rank: int, world: int, compiled: Compiled, place: RendezvousAddress, address: str, pipe: Any) -> None:
    meeting = Rendezvous(place, rank, world)
    tensors = Tensors(compiled.buffers, world)
    session = FusionSession(compiled.path, world, {rank: HERE})
    join(session, rank, meeting.exchange, address)
    session.bind({rank: tensors.addresses(rank)}, keep=tensors)
    pipe.send("ready")
    try:
        while True:
            session.run()
            session.wait()
    except CheckFailed as error:
        pipe.send((str(error), error.findings))
    session.close()
