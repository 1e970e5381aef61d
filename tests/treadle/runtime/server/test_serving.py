"""A server with real workers: what they train, and what each fault does to the others."""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.treadle.runtime.server.served import (
    access_file,
    expected,
    job_of,
    joined,
    kill,
    plan_of,
    push,
    serving,
    train,
    until,
    values,
)
from treadle.planner.errors import CheckFailed, InputError, LimitError
from treadle.planner.passes.server.keys import ServerKey
from treadle.runtime.server import access
from treadle.runtime.server.control import Control
from treadle.runtime.server.messages import Notice
from treadle.runtime.server.served_job import ServedJob
from treadle.runtime.server.worker import Worker
from treadle.runtime.wire.control_stream import ControlStream


@pytest.mark.parametrize("carrier", ["tcp", "shared"])
def test_workers_train_and_the_server_ends_when_all_have_left(tmp_path: Path, carrier: str) -> None:
    with serving([job_of(carrier=carrier)], tmp_path) as running:
        file = tmp_path / "small.access.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        workers = joined(access_file(tmp_path), 0, 1)
        assert workers[0].layout.rings == (carrier == "shared")
        train(workers, 3)
        assert all(np.array_equal(values(worker), expected(3)) for worker in workers)
        for worker in workers:
            worker.close()
        (end,) = running.ended()
    assert (end.failed, end.step, end.reason) == (False, 3, "all workers have left")
    assert not file.exists()


def test_a_worker_that_comes_after_the_first_load_does_not_wait_for_another(tmp_path: Path) -> None:
    with serving([job_of()], tmp_path):
        first, *_ = joined(access_file(tmp_path), 0)
        late = Worker(access_file(tmp_path), 1)
        late.await_first_load()
        train([first, late])
        assert np.array_equal(values(late), expected(1))


def test_two_jobs_share_cores_and_know_nothing_of_each_other(tmp_path: Path) -> None:
    with serving([job_of("one"), job_of("two", optimizer="adam")], tmp_path) as running:
        first, second = (joined(access_file(tmp_path, name), 0, 1) for name in ("one", "two"))
        train(first, 2)
        train(second, 1)
        kill(second[1])
        until(lambda: any(end for end in running.said if end.startswith("two: worker 1 is lost")))
        train(first, 2)
        assert np.array_equal(values(first[0]), expected(4))
        for worker in first:
            worker.close()
        one, two = running.ended()
        second[0].client.close()
    assert (one.failed, one.step) == (False, 4)
    assert (two.failed, two.step) == (True, 1)


def test_others_learn_of_a_dead_worker_and_the_state_is_kept(tmp_path: Path) -> None:
    with serving([job_of()], tmp_path, snapshots=tmp_path / "kept") as running:
        workers = joined(access_file(tmp_path), 0, 1)
        train(workers, 2)
        push(workers[0])
        kill(workers[1])
        with pytest.raises(CheckFailed, match=r"worker 0 in step 3: worker 1 is lost in step 3"):
            workers[0].finish()
        (end,) = running.ended()
        workers[0].close()
    assert (end.failed, end.step) == (True, 2)
    with serving([job_of()], tmp_path, snapshots=tmp_path / "kept") as running:
        workers = joined(access_file(tmp_path), 0, 1)
        assert [worker.step for worker in workers] == [3, 3]
        train(workers)
        assert np.array_equal(values(workers[0]), expected(3))
        for worker in workers:
            worker.close()


@pytest.mark.parametrize("carrier", ["tcp", "shared"])
def test_with_rejoin_the_step_waits_for_a_dead_worker(tmp_path: Path, carrier: str) -> None:
    with serving([job_of(carrier=carrier)], tmp_path, rejoin=True) as running:
        first, second = joined(access_file(tmp_path), 0, 1)
        train([first, second], 2)
        push(first)
        push(second)
        kill(second)
        (again,) = joined(access_file(tmp_path), 1)
        assert again.step in (3, 4)  # whether its gradients had all arrived
        if again.step == 3:
            push(again)
            again.finish()
        first.finish()
        train([first, again], 1)
        assert np.array_equal(values(first), expected(4))
        assert np.array_equal(values(again), expected(4))
        for worker in (first, again):
            worker.close()
        (end,) = running.ended()
    assert not end.failed
    assert [line for line in running.said if "is lost in step" in line]
    assert [line for line in running.said if "worker 1 is back in step" in line]


def test_a_corrupt_frame_fails_its_worker_and_others_learn_why(tmp_path: Path) -> None:
    with serving([job_of()], tmp_path) as running:
        (worker,) = joined(access_file(tmp_path), 0)
        found = access.read(tmp_path / "small.access.json")
        assert found.servers[0] is not None
        bad = Control(found.servers[0].address, "small", found.key, 1)
        with socket.socket(fileno=bad.streams()[0]) as stream:
            stream.sendall(struct.pack("<IHHIIQII", 0x56525354, 2, 0, 0, 4, 1, 0, 0) + b"body")
            push(worker)
            with pytest.raises(CheckFailed, match="worker 1 is lost in step 1"):
                worker.finish()
        until(lambda: bad.notice() is not None)
        (end,) = running.ended()
        worker.close()
    assert end.failed
    assert "worker 1 is lost" in end.reason


@pytest.mark.parametrize("carrier", ["tcp", "shared"])
def test_a_worker_that_is_refused_is_told_why(tmp_path: Path, carrier: str) -> None:
    with serving([job_of(carrier=carrier)], tmp_path) as running:
        first, second = joined(access_file(tmp_path), 0, 1)
        second.step += 2
        push(second)
        with pytest.raises(CheckFailed, match=r"worker 1 sent chunk \d for version 3, where 1 is next"):
            second.finish()
        assert running.ended()[0].failed
        for worker in (first, second):
            worker.close()


def test_who_does_not_know_the_nonce_is_refused_and_disturbs_no_one(tmp_path: Path) -> None:
    with serving([job_of()], tmp_path) as running:
        workers = joined(access_file(tmp_path), 0, 1)
        found = access.read(tmp_path / "small.access.json")
        assert found.servers[0] is not None
        address = found.servers[0].address
        silent = [socket.create_connection(address) for _ in range(300)]
        for wrong in (b"GET / HTTP/1.1\r\n\r\n", b"trdw" + bytes(300)):
            with socket.create_connection(address) as stream:
                stream.sendall(wrong)
        with pytest.raises(CheckFailed, match="its nonce or namespace is another"):
            Control(address, "small", bytes(32), 1)
        with pytest.raises(CheckFailed, match="its nonce or namespace is another"):
            Control(address, "other", found.key, 1)
        with pytest.raises(CheckFailed, match="it is not among the workers 0 to 1"):
            Control(address, "small", found.key, 2)
        with pytest.raises(CheckFailed, match="worker 1 is connected already"):
            Control(address, "small", found.key, 1)
        train(workers, 2)
        assert np.array_equal(values(workers[1]), expected(2))
        for each in silent:
            each.close()
        for worker in workers:
            worker.close()
        (end,) = running.ended()
    assert not end.failed
    assert any("without a job's nonce" in line for line in running.said)


def test_a_worker_talks_to_no_server_without_the_nonce() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            stream, _ = listener.accept()
            with stream:
                stream.sendall(os.urandom(32))
                stream.recv(1000)
                stream.sendall(os.urandom(32))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(CheckFailed, match="does not know this job's nonce"):
            Control(listener.getsockname(), "small", bytes(32), 0)
        thread.join()


def test_a_worker_that_leaves_early_fails_the_step_that_waits_for_it(tmp_path: Path) -> None:
    with serving([job_of()], tmp_path) as running:
        first, second = joined(access_file(tmp_path), 0, 1)
        train([first, second])
        second.close()
        push(first)
        with pytest.raises(CheckFailed, match="step 2 waits for worker 1, which has left the job"):
            first.finish()
        assert running.ended()[0].failed
        first.close()


def test_a_worker_that_goes_before_it_trains_may_come_again(tmp_path: Path) -> None:
    with serving([job_of()], tmp_path) as running:
        first, refused = joined(access_file(tmp_path), 0, 1)
        refused.close(trained=False)
        push(first)
        until(lambda: "small: step 1 waits for worker 1, which has not connected" in running.said)
        (second,) = joined(access_file(tmp_path), 1)
        push(second)
        for each in (first, second):
            each.finish()
            each.close()
        assert not running.ended()[0].failed


def test_a_worker_that_is_late_awaits_the_loads_that_others_have_seen(tmp_path: Path) -> None:
    with serving([job_of()], tmp_path):
        (first,) = joined(access_file(tmp_path), 0)
        first.load(first.read())
        (second,) = joined(access_file(tmp_path), 1)
        assert second.loads == 1
        second.await_load()
        train([first, second])
        first.load(first.read())
        second.await_load()
        train([first, second])
        first.close()
        second.close()


def test_a_forked_process_does_not_hide_the_death_of_its_worker() -> None:
    ours, other = socket.socketpair()
    other.settimeout(10)
    stream = ControlStream(ours, Notice)
    until_read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(until_read, 1)
        os._exit(0)
    try:
        ours.close()  # as the end of this process would
        assert other.recv(1) == b""
    finally:
        os.close(write)
        os.close(until_read)
        os.waitpid(child, 0)
        other.close()
    assert stream.local


def test_a_slow_worker_is_named_and_waited_for(tmp_path: Path) -> None:
    with serving([job_of()], tmp_path) as running:
        first, second = joined(access_file(tmp_path), 0, 1)
        push(first)
        until(lambda: "small: step 1 waits for worker 1, which is slow" in running.said)
        push(second)
        first.finish()
        second.finish()
        assert np.array_equal(values(first), expected(1))


def test_servers_of_two_racks_add_up_to_one(tmp_path: Path) -> None:
    plan = plan_of(levels="two-level", workers=4, servers=2, racks=2, core_rate=10**8, optimizer="adam")
    assert plan.decisions.two_level
    address = access_file(tmp_path)
    started: list[str] = []

    def second() -> None:
        with serving([ServedJob("small", plan.decisions, 1)], tmp_path, snapshots=tmp_path / "kept") as running:
            started.append("second")
            running.ended()

    thread = threading.Thread(target=second)
    thread.start()
    with serving([ServedJob("small", plan.decisions, 0)], tmp_path, snapshots=tmp_path / "kept") as running:
        workers = joined(address, 0, 1, 2, 3)
        assert [worker.layout.server for worker in workers] == [0, 0, 1, 1]
        train(workers, 2)
        states = [worker.read() for worker in workers]
        for state in states[1:]:
            assert np.array_equal(state.weights, states[0].weights)
            for one, other in zip(state.states, states[0].states, strict=True):
                assert np.array_equal(one, other)
                assert one.all()
        for worker in workers:
            worker.close()
        assert not running.ended()[0].failed
    thread.join()
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        f"small.{server}-000000000002.snapshot" for server in (0, 1)
    ]


def test_memory_that_is_not_there_is_missed_at_the_start(tmp_path: Path) -> None:
    huge = job_of("huge", keys=(ServerKey(name="all", elements=1 << 38),), chunk_bytes=1 << 30)
    with pytest.raises(LimitError, match=r"job huge needs .* GiB, where"), serving([huge], tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_addresses_are_those_of_this_machine(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"--address: cannot listen at 192\.0\.2\.1: "),
        serving([job_of()], tmp_path, addresses=("192.0.2.1",)),
    ):
        pass
    with (
        pytest.raises(InputError, match="found 3 addresses, expected one, or one for each of the 2 interfaces"),
        serving([job_of()], tmp_path, addresses=("127.0.0.1", "127.0.0.2", "127.0.0.3")),
    ):
        pass
    with serving([job_of()], tmp_path, addresses=("127.0.0.1", "127.0.0.2")):
        workers = joined(access_file(tmp_path), 0, 1)
        hosts = {host for worker in workers for host, _ in worker.layout.addresses}
        assert hosts == {"127.0.0.1", "127.0.0.2"}
        train(workers)
        assert np.array_equal(values(workers[0]), expected(1))
