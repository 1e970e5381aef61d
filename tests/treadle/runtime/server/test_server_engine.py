"""The native server: sums and steps of every engine, their order, versions, settings, jobs, snapshots, racks."""

from __future__ import annotations

from socket import AF_UNIX, SOCK_STREAM, socketpair
from typing import Any

import numpy as np
import pytest

from tests.treadle.runtime.server.hand_worker import (
    EMPTY,
    FAILED,
    PULL,
    PUSH,
    PUSH_PULL,
    job_of,
    served,
    settings_of,
    until,
)
from tests.treadle.runtime.server.stand_in import read_frame
from treadle.planner.errors import CheckFailed, LimitError
from treadle.planner.passes.server.problem import STATES, OptimizerName
from treadle.runtime.server.engine import ADDED, ARRIVED, FINISHED, LOST, OPTIMIZED, SENT, SNAPSHOT, Engine

CHUNKS, SLOTS = (70, 70, 33, 70, 5), (0, 1, 0, 1, 1)


def random(worker: int, step: int, count: int = sum(CHUNKS)) -> Any:
    return np.random.default_rng((worker, step)).normal(size=count).astype(np.float32)


def test_the_published_example() -> None:
    """Two interfaces of a core each; three workers push 1, 2 and 3; weights 10, plain SGD of rate 0.5: 9 everywhere."""
    with served(job_of(3, [8, 8, 8, 4], [0, 1, 0, 1], log=1000), 2, 10.0) as job:
        for values in job.exchange(1, [np.full(28, 1 + worker, np.float32) for worker in range(3)]):
            assert (values == 9).all()
        added = job.log(ADDED)
        threads: dict[int, set[int]] = {}
        assert [(added["chunk"] == chunk).sum() for chunk in range(4)] == [3] * 4
        for line in job.engine.log(job.number, 1 << 12):
            threads.setdefault(int(line["chunk"]), set()).add(int(line["thread"]))
        assert {chunk: len(its) for chunk, its in threads.items()} == dict.fromkeys(range(4), 1)
        assert threads[0] == threads[2] != threads[1] == threads[3]
        assert job.engine.versions(job.number) == (1, 1)
        assert job.event(FINISHED).step == 1


def test_the_first_result_leaves_before_the_last_chunk_of_its_key_arrives() -> None:
    with served(job_of(2, [16, 16, 16], [0, 0, 0], log=100)) as job:
        for worker in range(2):
            job.push(worker, 0, 1, 1.0)
        for worker in range(2):
            assert job.value(worker, 0)[0] == 1
        for worker in range(2):
            job.push(worker, 1, 1, 1.0)
            job.push(worker, 2, 1, 1.0)
        job.value(0, 1), job.value(0, 2), job.value(1, 1), job.value(1, 2)
        arrived, sent = job.log(ARRIVED), job.log(SENT)
        assert sent[sent["chunk"] == 0]["time"].max() < arrived[arrived["chunk"] == 2]["time"].min()
        assert [line["chunk"] for line in job.log(OPTIMIZED)] == [0, 1, 2]


@pytest.mark.parametrize("optimizer", list(STATES))
def test_every_engine_gives_the_same_bits(optimizer: OptimizerName) -> None:
    found = []
    steps = {"momentum": 0.9, "weight_decay": 0.01}
    for variant in ({}, {"bypass": True}, {"wide": True}, {"wide": True, "bypass": True}):
        job = job_of(
            3, CHUNKS, SLOTS, chunk_keys=[0, 0, 0, 1, 2], optimizer=optimizer, settings=settings_of(**steps), **variant
        )
        with served(job, 2, 1.5) as running:
            values = [running.exchange(step, [random(worker, step) for worker in range(3)]) for step in (1, 2, 3)]
            for each in values:
                assert all((its == each[0]).all() for its in each)
            states = [running.engine.read(0, 3, 1 + state)[0] for state in range(STATES[optimizer])]
            found.append([values[-1][0], *states])
    for other in found[1:]:
        for mine, its in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(mine, its)
    if optimizer == "mean":
        expected = ((random(0, 3) + random(1, 3)) + random(2, 3)) / np.float32(3)
        np.testing.assert_array_equal(found[0][0], expected)
    else:
        assert np.isfinite(found[0][0]).all()
        assert (found[0][0] != 1.5).all()


@pytest.mark.parametrize(("in_order_of_arrival", "expected"), [(False, 0.0), (True, 1.0)])
def test_gradients_are_added_in_the_order_of_workers_or_of_arrival(in_order_of_arrival: bool, expected: float) -> None:
    """(1e8 + 1) - 1e8 is 0, and (1e8 - 1e8) + 1 is 1."""
    job = job_of(3, [4], [0], optimizer="mean", arrival_order=in_order_of_arrival)
    with served(job) as running:
        for count, (worker, gradient) in enumerate(((0, 1e8), (2, -1e8), (1, 1.0))):
            running.push(worker, 0, 1, gradient)
            running.until_frames(count + 1)
        assert running.value(1, 0)[1].tolist() == [np.float32(expected) / np.float32(3)] * 4


def test_a_worker_without_a_gradient_counts_as_zeros_and_all_of_them_skip_the_chunk() -> None:
    with served(job_of(2, [4, 4], [0, 0], settings=settings_of(momentum=0.9)), 1, 10.0) as job:
        job.send(0, 0, PUSH_PULL, 1, flags=EMPTY)
        job.push(1, 0, 1, 2.0)
        assert job.value(0, 0)[1].tolist() == [9.5] * 4
        for worker in range(2):
            job.send(worker, 1, PUSH_PULL, 1, flags=EMPTY)
        job.value(1, 0)
        assert job.value(1, 1)[1].tolist() == [10.0] * 4
        weights, updates = job.engine.read(0, 1, 0)
        assert updates.tolist() == [1, 0]
        assert weights.tolist() == [9.5] * 4 + [10.0] * 4
        assert job.engine.read(0, 1, 1)[0].tolist() == [1.0] * 4 + [0.0] * 4


def test_a_pull_waits_for_its_version_and_a_push_has_no_answer() -> None:
    with served(job_of(2, [4], [0]), 1, 10.0) as job:
        job.send(0, 0, PULL, 0)
        assert job.value(0, 0)[0] == 0
        job.push(0, 0, 1, 1.0, PUSH)
        job.send(0, 0, PULL, 1)
        job.until_frames(3)
        job.push(1, 0, 1, 1.0, PUSH)
        version, values = job.value(0, 0)
        assert (version, values.tolist()) == (1, [9.5] * 4)
        job.streams[1, 0].setblocking(False)
        with pytest.raises(BlockingIOError):
            job.streams[1, 0].recv(1)


def test_settings_hold_from_their_version_on_and_must_be_those_of_worker_0() -> None:
    with served(job_of(2, [4], [0]), 1, 10.0) as job:
        for worker in (1, 0):
            job.settings(worker, 2, settings_of(0.25))
        for step, expected in ((1, 9.5), (2, 9.25), (3, 9.0)):
            for worker in range(2):
                job.push(worker, 0, step, 1.0)
            for worker in range(2):
                assert job.value(worker, 0)[1].tolist() == [expected] * 4
        job.settings(1, 4, settings_of(0.3))
        job.settings(0, 4, settings_of(0.25))
        frame = read_frame(job.streams[1, 0])
        assert frame.op == FAILED
        assert frame.body == b"worker 1 has other settings of the optimizer than worker 0 for version 4"
        assert job.event(LOST).worker == 1


def test_asynchronous_gradients_are_applied_one_by_one_with_settings_of_their_own() -> None:
    with served(job_of(2, [4], [0], synchronous=False), 1, 10.0) as job:
        job.push(0, 0, 1, 1.0)
        assert job.value(0, 0)[1].tolist() == [9.5] * 4
        job.settings(1, 1, settings_of(0.25))
        job.push(1, 0, 1, 1.0)
        version, values = job.value(1, 0)
        assert (version, values.tolist()) == (2, [9.25] * 4)
        job.push(0, 0, 7, 1.0)
        assert job.value(0, 0)[1].tolist() == [8.75] * 4
        job.send(0, 0, PUSH_PULL, 8, flags=EMPTY)
        assert job.value(0, 0)[0] == 3


def test_jobs_share_cores_and_nothing_else() -> None:
    engine = Engine(2)
    try:
        with served(job_of(1, [8, 8], [0, 1]), 2, 10.0, engine) as first:
            wide = job_of(2, [4, 4], [1, 0], chunk_keys=[0, 1], wide=True, optimizer="mean")
            with served(wide, 2, 1.0, engine) as second:
                for step in (1, 2):
                    second.push(0, 0, step, 1.0)
                    assert (first.exchange(step, [np.ones(16, np.float32)])[0] == 10 - step / 2).all()
                    second.push(1, 0, step, 2.0)
                    assert second.value(0, 0)[1].tolist() == second.value(1, 0)[1].tolist() == [1.5] * 4
                assert engine.versions(second.number) == (0, 2)
                assert engine.versions(first.number) == (2, 2)
    finally:
        engine.close()


def test_the_version_before_stays_whole_until_the_next_one_is_made() -> None:
    with served(job_of(1, [4], [0], settings=settings_of(momentum=1.0)), 1, 10.0) as job:
        for step in (1, 2):
            job.exchange(step, [np.ones(4, np.float32)])
        assert job.engine.read(0, 1, 0)[0].tolist() == [9.5] * 4
        assert job.engine.read(0, 1, 1)[0].tolist() == [1.0] * 4
        weights, updates = job.engine.read(0, 2, 0)
        assert (weights.tolist(), updates.tolist()) == ([8.5] * 4, [2])
        for version in (0, 3):
            with pytest.raises(CheckFailed, match=f"version {version}"):
                job.engine.read(0, version, 0)


def test_a_loaded_state_goes_on_as_if_it_had_never_left() -> None:
    job = job_of(2, CHUNKS, SLOTS, optimizer="adam")
    gradients = [[random(worker, step) for worker in range(2)] for step in range(1, 5)]
    with served(job, 2, 1.0) as first:
        whole = [first.exchange(step, its)[0] for step, its in enumerate(gradients, 1)][-1]
    with served(job, 2, 1.0) as first:
        for step, its in enumerate(gradients[:2], 1):
            first.exchange(step, its)
        (weights, updates), *states = (first.engine.read(0, 2, part) for part in range(3))
    with served(job, 2) as second:
        second.engine.load(0, 2, weights, [each for each, _ in states], updates)
        assert second.engine.versions(0) == (2, 2)
        for step, its in enumerate(gradients[2:], 3):
            found = second.exchange(step, its)[0]
    np.testing.assert_array_equal(found, whole)


def test_a_snapshot_stays_until_it_is_released_and_later_ones_are_skipped() -> None:
    job = job_of(1, CHUNKS, SLOTS, snapshot_every=2, optimizer="nesterov", settings=settings_of(momentum=0.9))
    with served(job, 2, 1.0) as running:
        kept = [running.exchange(step, [random(0, step)])[0] for step in range(1, 6)]
        assert running.event(SNAPSHOT).step == 2
        np.testing.assert_array_equal(running.engine.copy(0, 2, 0)[0], kept[1])
        states, updates = running.engine.copy(0, 2, 1)
        assert states.any()
        assert updates.tolist() == [2] * 5
        with pytest.raises(CheckFailed, match="no copy of version 4"):
            running.engine.copy(0, 4, 0)
        running.engine.release(0)
        kept += [running.exchange(step, [random(0, step)])[0] for step in (6, 7)]
        assert running.event(SNAPSHOT).step == 6
        np.testing.assert_array_equal(running.engine.copy(0, 6, 0)[0], kept[5])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_numbers_travel_and_sums_and_weights_are_single(dtype: str) -> None:
    def short(values: Any) -> bytes:
        rounded = np.float16(values).view(np.uint16) if dtype == "float16" else np.float32(values).view(np.uint32) >> 16
        return rounded.astype(np.uint16).tobytes()

    one, fine = np.full(6, 1.0, np.float32), np.full(6, 2.0**-9, np.float32)
    with served(job_of(2, [6], [0], key_types=[dtype]), 1, 1.0) as job:
        job.send(1, 0, PUSH_PULL, 1, short(fine * 4))
        job.send(0, 0, PUSH_PULL, 1, short(fine * 4))
        for worker in range(2):
            assert read_frame(job.streams[worker, 0]).body == short(one - fine * 2)
        weights, _ = job.engine.read(0, 1, 0)
        assert (weights == 1 - 2.0**-8).all()


def test_a_worker_that_does_not_read_gets_whole_values_of_a_later_version() -> None:
    """What a stream does not take at once is kept aside, while other workers change the weights."""
    count = 1 << 16
    with served(job_of(2, [count], [0], synchronous=False), 1, 0.0) as job:
        for _ in range(3):
            job.push(0, 0, 1, 1.0)
        for step in range(1, 6):
            job.push(1, 0, step, 1.0)
            job.value(1, 0)
        until(lambda: job.engine.versions(0) == (8, 8))
        last = 0
        while last < 8:
            frame = read_frame(job.streams[0, 0])
            values = np.frombuffer(frame.body, np.float32)
            assert (values == -0.5 * frame.step).all()
            assert frame.step > last
            last = frame.step


def racks(optimizer: OptimizerName) -> Any:
    """Two servers of two workers each: what worker 0 of each rack has after 3 steps."""
    owners = [0, 1, 1, 0, 1] if optimizer != "lamb" else [0, 0, 0, 1, 1]
    more = {"chunk_keys": [0, 0, 0, 1, 2], "racks": 2, "owners": owners, "optimizer": optimizer}
    with (
        served(job_of(2, CHUNKS, SLOTS, rack=0, **more), 2, 1.0) as first,
        served(job_of(2, CHUNKS, SLOTS, rack=1, **more), 2, 1.0) as second,
    ):
        for slot in range(2):
            near, far = socketpair(AF_UNIX, SOCK_STREAM)
            first.engine.peer(0, 1, slot, near.detach())
            second.engine.peer(0, 0, slot, far.detach())
        for step in (1, 2, 3):
            for place, each in enumerate((first, second)):
                each.push_all(step, [random(2 * place + worker, step) for worker in range(2)])
            found = [each.values(step)[1] for each in (first, second)]
    return found


@pytest.mark.parametrize("optimizer", ["mean", "adam", "lamb"])
def test_two_levels_add_up_racks_and_give_all_the_same_values(optimizer: OptimizerName) -> None:
    first, second = racks(optimizer)
    np.testing.assert_array_equal(first, second)
    if optimizer == "mean":
        sums = [random(2 * rack, 3) + random(2 * rack + 1, 3) for rack in range(2)]
        np.testing.assert_array_equal(first, (sums[0] + sums[1]) / np.float32(4))
    else:
        with served(job_of(4, CHUNKS, SLOTS, chunk_keys=[0, 0, 0, 1, 2], optimizer=optimizer), 2, 1.0) as flat:
            for step in (1, 2, 3):
                expected = flat.exchange(step, [random(worker, step) for worker in range(4)])[0]
        np.testing.assert_allclose(first, expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"optimizer": "lamb", "synchronous": False}, "LAMB is synchronous"),
        ({"wide": True, "synchronous": False}, "the wide engine is synchronous"),
        ({"slots": [0, 5]}, "chunk 1 is out of range"),
        ({"key_groups": [3]}, "key 0 has no such type or group"),
        ({"owners": [0, 1], "racks": 2, "optimizer": "lamb"}, "those of key 0 have several owners"),
        ({"slots": [0, -1], "optimizer": "lamb"}, "LAMB needs the whole model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_jobs_that_no_server_can_run_are_refused(more: dict[str, Any], why: str) -> None:
    engine = Engine(2)
    try:
        with pytest.raises(CheckFailed, match=why):
            engine.add(job_of(2, [4, 4], **{"slots": [0, 1], **more}))
    finally:
        engine.close()


def test_memory_that_is_not_there_is_not_taken() -> None:
    engine = Engine(1)
    try:
        with pytest.raises(LimitError, match=r"job job needs \d+\.\d\d GiB, where .* are left of the "):
            engine.add(job_of(2, [1 << 29] * 4096, [0] * 4096))
        assert engine.add(job_of(1, [4], [0])) == 0
    finally:
        engine.close()
