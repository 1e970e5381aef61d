"""Workers that die, come back, are late or send what is wrong, on the native server."""

from __future__ import annotations

import os
from collections.abc import Callable
from socket import AF_UNIX, SOCK_STREAM, socketpair

import numpy as np
import pytest

from tests.treadle.runtime.server.hand_worker import (
    EMPTY,
    FAILED,
    PULL,
    PUSH,
    PUSH_PULL,
    SECONDS,
    SETTINGS,
    VALUE,
    job_of,
    served,
    settings_of,
)
from tests.treadle.runtime.server.stand_in import Frame, layout_of, read_frame
from treadle.planner.errors import CheckFailed
from treadle.planner.passes.server.problem import OptimizerName
from treadle.runtime.server.client_library import PUSH_PULL as BOTH
from treadle.runtime.server.client_library import Client
from treadle.runtime.server.engine import LATE, LOST, Engine, NativeEvent
from treadle.runtime.server.messages import LayoutKey

BODY = np.ones(4, np.float32).tobytes()


def damaged(place: int, frame: Frame) -> bytes:
    found = bytearray(frame.packed())
    found[place] ^= 16
    return bytes(found)


def good(op: int = PUSH_PULL, chunk: int = 0, step: int = 1, body: bytes = BODY, flags: int = 0) -> Frame:
    return Frame(op, flags, chunk, step, body)


WRONG: dict[str, tuple[Callable[[], bytes], str]] = {
    "magic": (lambda: damaged(0, good()), "sent what is no frame"),
    "head": (lambda: damaged(16, good()), "sent a head with a wrong sum"),
    "sum of head": (lambda: damaged(28, good()), "sent a head with a wrong sum"),
    "body": (lambda: damaged(40, good()), "sent a body with a wrong sum"),
    "operation": (lambda: good(op=9).packed(), "sent an operation of no meaning here: 9"),
    "value": (lambda: good(op=VALUE).packed(), "sent an operation of no meaning here: 4"),
    "flags": (lambda: good(flags=6).packed(), "sent unknown flags"),
    "flags of a pull": (lambda: good(op=PULL, body=b"", flags=EMPTY).packed(), "sent flags that belong to a gradient"),
    "chunk": (lambda: good(chunk=7).packed(), "sent chunk 7, which is not on this core"),
    "core": (lambda: good(chunk=1).packed(), "sent chunk 1, which is not on this core"),
    "longer": (lambda: good(body=BODY * 2).packed(), "sent 32 bytes of chunk 0, which has 16"),
    "empty": (lambda: good(flags=EMPTY).packed(), "sent 16 bytes of chunk 0, which has 0"),
    "version": (lambda: good(step=3).packed(), "sent chunk 0 for version 3, where 1 is next"),
    "twice": (lambda: good().packed() * 2, "sent chunk 0 for version 1 twice"),
    "groups": (lambda: good(op=SETTINGS, chunk=2, body=bytes(256)).packed(), "sent settings of 2 groups, not 1"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_frames_end_their_worker_with_a_text_and_nobody_else(kind: str) -> None:
    sent, why = WRONG[kind]
    with served(job_of(2, [4, 4], [0, 1]), 2, 10.0) as job:
        job.streams[1, 0].sendall(sent())
        frame = read_frame(job.streams[1, 0])
        assert (frame.op, frame.body.decode()) == (FAILED, f"worker 1 {why}")
        assert job.streams[1, 0].recv(1) == b""
        event = job.event(LOST)
        assert (event.worker, event.text) == (1, f"worker 1 {why}")
        job.connect(1)
        for worker in range(2):
            job.push(worker, 0, 1, 1.0)
            job.push(worker, 1, 1, 1.0)
        for worker, chunk in ((0, 0), (1, 0), (0, 1), (1, 1)):
            version, values = job.value(worker, chunk)
            assert (version, values.tolist()) == (1, [9.5] * 4)
        assert not job.others()


def test_a_worker_that_was_lost_comes_back_and_nothing_counts_twice() -> None:
    """Whole gradients of its first life still count; one that had come in part, and its values, are sent again."""
    with served(job_of(2, [4, 4, 4], [0, 1, 0]), 2, 10.0) as job:
        job.push(0, 0, 1, 1.0)
        job.push(1, 0, 1, 1.0)
        assert job.value(0, 0)[0] == job.value(1, 0)[0] == 1
        job.push(1, 1, 1, 1.0)
        job.streams[1, 0].sendall(good(chunk=2).packed()[:40])
        job.until_frames(3)
        for slot in range(2):
            job.streams[1, slot].close()
        event = job.event(LOST)
        assert (event.worker, event.text) == (1, "worker 1 closed its stream")
        job.push(0, 1, 1, 1.0)
        assert job.value(0, 1)[1].tolist() == [9.5] * 4
        job.push(0, 2, 1, 1.0)
        job.connect(1)
        for chunk in range(3):
            job.push(1, chunk, 1, 1.0)
            version, values = job.value(1, chunk)
            assert (version, values.tolist()) == (1, [9.5] * 4)
        assert job.value(0, 2)[1].tolist() == [9.5] * 4
        assert not job.others()


def test_a_worker_that_is_dropped_is_told_why_and_not_reported() -> None:
    with served(job_of(2, [4, 4], [0, 1]), 2, 10.0) as job:
        job.engine.drop(job.number, 1, "has no place here")
        for slot in range(2):
            assert read_frame(job.streams[1, slot]).body == b"worker 1 has no place here"
        assert not job.engine.events(0.3)
        with pytest.raises(CheckFailed, match="no such job or worker"):
            job.engine.drop(job.number, 2, "")


def test_workers_that_others_wait_for_are_reported_each_once() -> None:
    with served(job_of(3, [4], [0]), 1, 10.0) as job:
        job.push(1, 0, 1, 1.0)
        events: list[NativeEvent] = []
        while len(events) < 2:
            events += job.engine.events(SECONDS) or pytest.fail("nobody is late")
        assert [(event.what, event.worker, event.step) for event in events] == [(LATE, 0, 1), (LATE, 2, 1)]
        assert events[0].text == "worker 0 is late: others have sent version 1"
        job.push(0, 0, 1, 1.0)
        job.push(2, 0, 1, 1.0)
        assert job.value(0, 0)[0] == 1
        assert not job.others()


def share(engine: Engine, job: int, worker: int, client: Client, cores: int) -> None:
    bells = [os.dup(each) for each in client.bells(0)]
    engine.arena(job, worker, 0, os.dup(client.memfd), bells)
    client.rings(0, [os.dup(engine.bell(core)) for core in range(cores)])


def test_workers_of_one_host_share_rings_and_one_that_dies_comes_back() -> None:
    chunks, slots = [16] * 9 + [5], [0, 1] * 5
    layout = layout_of([LayoutKey("a", 149, "float32", 0)], [slots], (0, 0))
    job = job_of(2, chunks, slots, shared=True)
    with served(job, 2, 10.0, streams=False) as running:
        clients = [Client(layout) for _ in range(2)]
        for worker, client in enumerate(clients):
            share(running.engine, running.number, worker, client, 2)
        for step in (1, 2):
            for client in clients:
                client.gradient(0).view(np.float32)[:] = step
                client.settings(step, settings_of(0.5))
                client.push(0, step, BOTH)
            for client in clients:
                assert client.wait(0, step, 20000)
                assert (client.value(0).view(np.float32) == (9.5, 8.5)[step - 1]).all()
        clients[1].push(0, 3, BOTH)
        running.until_frames(2 * 2 * 12 + 10)
        former = clients[1].gradient(0).view(np.float32)
        clients[1].close()
        event = running.event(LOST)
        running.engine.drop(running.number, 1, "")  # as who serves does: one core has seen its end, now all have
        former[:] = 99
        assert (event.worker, event.text) == (1, "worker 1 closed its arena")
        clients[1] = Client(layout)
        share(running.engine, running.number, 1, clients[1], 2)
        for client in clients:
            client.gradient(0).view(np.float32)[:] = 2
            client.push(0, 3, BOTH)
        for client in clients:
            assert client.wait(0, 3, 20000)
            assert (client.value(0).view(np.float32) == 7.5).all()
            client.close()


def test_a_gradient_may_be_written_again_once_its_push_is_done() -> None:
    count = 1 << 22
    job = job_of(1, [count], [0], shared=True, synchronous=False, settings=settings_of())
    with served(job, 1, 10.0, streams=False) as running:
        client = Client(layout_of([LayoutKey("a", count, "float32", 0)], [[0]], (0,), 4 * count))
        share(running.engine, running.number, 0, client, 1)
        gradient = client.gradient(0).view(np.float32)
        gradient[:] = 1
        client.push(0, 0, PUSH)
        assert client.wait(0, 0, 20000)
        gradient[:] = 99
        client.push(0, 0, PULL)
        assert client.wait(0, 0, 20000)
        assert (client.value(0).view(np.float32) == 9.5).all()
        client.close()


@pytest.mark.parametrize("optimizer", ["nesterov", "lamb"])
def test_a_model_larger_than_the_cache_comes_to_the_same_over_rings_as_over_streams(optimizer: OptimizerName) -> None:
    """Over rings its weights are written past the cache."""
    count, each = 3 << 20, 1 << 18
    slots = [0, 1] * (count // each // 2)
    layout = layout_of([LayoutKey("a", count, "float32", 0)], [slots], (0, 0), 4 * each)
    found = []
    for shared in (True, False):
        job = job_of(
            2, [each] * len(slots), slots, shared=shared, optimizer=optimizer, settings=settings_of(momentum=0.9)
        )
        with served(job, 2, 1.0, streams=False) as running:
            clients = [Client(layout) for _ in range(2)]
            for worker, client in enumerate(clients):
                if shared:
                    share(running.engine, running.number, worker, client, 2)
                else:
                    for slot in range(2):
                        near, far = socketpair(AF_UNIX, SOCK_STREAM)
                        running.engine.stream(running.number, worker, slot, near.detach())
                        client.stream(0, slot, far.detach())
            for step in (1, 2):
                for worker, client in enumerate(clients):
                    client.gradient(0).view(np.float32)[:] = np.linspace(-1, step + worker, count, dtype=np.float32)
                    client.push(0, step, BOTH)
                for client in clients:
                    assert client.wait(0, step, 20000)
            values = [client.value(0).view(np.float32) for client in clients]
            np.testing.assert_array_equal(values[0], values[1])
            found.append((values[0].copy(), running.engine.read(0, 2, 1)[0]))
            for client in clients:
                client.close()
    for mine, its in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, its)
    assert (found[0][0] != 1).mean() > 0.99


def test_arenas_of_other_jobs_are_refused() -> None:
    with served(job_of(1, [16], [0]), streams=False) as running:
        client = Client(layout_of([LayoutKey("a", 1600, "float32", 0)], [[0] * 100], (0,)))
        with pytest.raises(CheckFailed, match="worker 0 shares an arena of another job"):
            share(running.engine, running.number, 0, client, 1)
        client.close()
        other = os.memfd_create("other")
        os.ftruncate(other, 1 << 20)
        with pytest.raises(CheckFailed, match="worker 0 shares no memory that stays"):
            running.engine.arena(running.number, 0, 0, other, [os.eventfd(0)])
