"""What holders keep of the states that ranks send, and what is left when a sender, a holder or a byte is lost."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tests.treadle.runtime.checkpoint.holders import (
    BYTES,
    HOST,
    NONCE,
    OWN,
    PIECES,
    address,
    agent_of,
    holder_of,
    introduce,
    pieces_of,
    rank_of,
    send,
    state_of,
    two,
)
from treadle.planner.errors import CheckFailed, InputError, LimitError
from treadle.runtime.checkpoint import sender as sender_module
from treadle.runtime.checkpoint.frames import BEGIN, COMMIT, PIECE, WANT, Frame, crc32c, joined, read, write
from treadle.runtime.checkpoint.holder import Holder
from treadle.runtime.checkpoint.local import fetched
from treadle.runtime.checkpoint.memory import StateMemory, StateOf
from treadle.runtime.checkpoint.sender import AFTER_ALL, Sender
from treadle.runtime.wire.door import Door
from treadle.runtime.wire.greeting import Greeting, ServerAway, call, exactly

FIRST = StateOf(0, 0)


def until(what: Callable[[], bool]) -> None:
    """Wait for what other threads do."""
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.002)


def held(holder: Holder, state: StateOf = FIRST) -> list[int]:
    return [each.version for each in holder.memory.versions()[state]]


def test_sums_are_those_of_the_standard_and_of_parts_together() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    for cut in (0, 1, 4, 9):
        first, second = b"123456789"[:cut], b"123456789"[cut:]
        assert joined(crc32c(first), crc32c(second), len(second)) == 0xE3069283
        assert crc32c(second, crc32c(first)) == 0xE3069283


def test_every_holder_has_the_bytes_of_all_buffers_in_a_row() -> None:
    state = state_of(1)
    first = torch.from_numpy(state[:40_000].copy()).view(torch.float32)
    last = state[70_000:]
    buffers = [first, b"", memoryview(state[40_000:70_000]), (last.ctypes.data, last.nbytes)]
    with two() as (one, other), rank_of(one) as (agent, sender):
        sender.begin(1, buffers)
        done = sender.drain(20)
        assert (done.version, done.held, done.failed) == (1, (0, 1), {})
        assert np.array_equal(agent.load(1), state)
        assert np.array_equal(other.memory.view(FIRST, 1), state)
        assert np.array_equal(fetched(agent, 1, 1), state)
        assert held(one) == held(other) == [1]
        assert one.memory.versions()[FIRST][0].sum == crc32c(state)
        assert len(sender.times()) == 5
        assert sender.times()["bytes"].sum() == 2 * BYTES
        assert one.memory.verify(1) == ()
        assert one.memory.reports() == []


@pytest.mark.parametrize("count", [0, 1, 30_000, 59_999])
def test_a_state_may_be_smaller_than_planned(count: int) -> None:
    with two() as (one, other), rank_of(one) as (agent, sender):
        assert send(sender, 1, state_of(1, count)).held == (0, 1)
        assert np.array_equal(agent.load(1), state_of(1, count))
        assert np.array_equal(other.memory.view(FIRST, 1), state_of(1, count))


def test_the_states_of_all_devices_are_apart() -> None:
    with two(devices=2) as (one, other), rank_of(one) as (_, sender), rank_of(one, rank=1) as (_, second):
        assert send(sender, 1).held == send(second, 1, state_of(9)).held == (0, 1)
        for holder in (one, other):
            assert np.array_equal(holder.memory.view(StateOf(0, 0), 1), state_of(1))
            assert np.array_equal(holder.memory.view(StateOf(0, 1), 1), state_of(9))


def test_pieces_leave_when_their_span_is_released_and_no_earlier() -> None:
    with two() as (one, _), rank_of(one) as (_, sender):
        sender.begin(1, [state_of(1)])
        sender.release(0)
        sender.release_own(0)
        until(lambda: np.count_nonzero(sender.times()["taken"]) == 2)
        times = sender.times()
        assert times["copy"].tolist() == [0, 0, 1, 1, 1]
        assert times["span"].tolist() == [0, AFTER_ALL, 0, 1, 2]
        assert (times["begun"] > 0).tolist() == [True, False, True, False, False]
        sender.release(1)
        until(lambda: np.count_nonzero(sender.times()["taken"]) == 3)
        assert sender.drain(20).held == (0, 1)
        times = sender.times()
        assert (times["released"] <= times["begun"]).all()
        assert (times["begun"] <= times["taken"]).all()
        assert held(one) == [1]


def test_without_a_pipeline_a_piece_waits_for_the_one_before() -> None:
    with two() as (one, _), rank_of(one, window=1) as (_, sender):
        send(sender, 1)
        times = sender.times()[2:]
        assert (times["taken"][:-1] <= times["begun"][1:]).all()


def test_a_sender_that_dies_leaves_the_version_before() -> None:
    with two() as (one, other), rank_of(one) as (_, sender):
        send(sender, 1)
        send(sender, 2)
        sender.begin(3, [state_of(3)])
        sender.release(1)
        until(lambda: np.count_nonzero(sender.times()["taken"]) == 2)
        sender.close()
        reports: list[str] = []
        until(lambda: bool(reports.extend(other.memory.reports()) or reports))
        assert reports == [
            "the state of machine 0, device 0: rank 0 closed its stream, with 60000 of 100000 bytes of version 3"
        ]
        assert held(other) == [2]
        assert np.array_equal(other.memory.view(FIRST, 2), state_of(2))
        with rank_of(one) as (agent, again):
            assert [each.version for each in agent.welcome.own] == [2]
            assert [each.version for each in agent.welcome.own] == [2]
            assert send(again, 3).held == (0, 1)
        assert held(other) == [3, 2]


def test_whoever_rolls_back_makes_later_versions_disappear() -> None:
    with two() as (one, other), rank_of(one) as (_, sender):
        for version in (1, 2, 3):
            send(sender, version)
        assert held(other) == [3, 2]
        sender.begin(3, [state_of(3)], wait_seconds=20)
        assert held(one) == held(other) == [2]
        sender.drain(20)
        assert held(one) == held(other) == [3, 2]


def test_what_is_newer_than_the_version_that_a_job_goes_on_from_is_dropped() -> None:
    with two() as (one, other), rank_of(one) as (_, sender):
        for version in (1, 2):
            send(sender, version)
        sender.begin(3, [state_of(3)], wait_seconds=20)
        other.memory.forget(2)
        done = sender.drain(20)
        assert "refuses: version 3 has not begun" in done.failed[1]
        assert held(other) == [2]
        other.memory.forget(None)
        assert held(other) == []
        assert held(one) == [3, 2]


def test_a_flipped_bit_is_found_before_a_version_is_offered_or_loaded() -> None:
    with two() as (one, other), rank_of(one) as (agent, sender):
        send(sender, 1)
        send(sender, 2)
        other.memory.view(FIRST, 2)[70_000] ^= 4
        with pytest.raises(CheckFailed, match=r"^machine 1: version 2 is damaged in the piece at byte 60000$"):
            fetched(agent, 1, 2)
        assert held(other) == [1]
        assert np.array_equal(fetched(agent, 1, 1), state_of(1))
        one.memory.view(FIRST, 1)[0] ^= 1
        with pytest.raises(CheckFailed, match="version 1 is damaged in the piece at byte 0"):
            agent.load(1)
        one.memory.view(FIRST, 2)[1] ^= 1
        assert one.memory.verify(2) == (FIRST,)
        assert one.memory.reports() == [
            f"the state of machine 0, device 0: version {version} is damaged in the piece at byte 0"
            for version in (1, 2)
        ]
        with pytest.raises(CheckFailed, match="version 2 is not there"):
            agent.load(2)


def test_a_machine_that_takes_the_place_of_another_fetches_what_it_held() -> None:
    with two(devices=2) as (one, other):
        with rank_of(one) as (_, sender), rank_of(one, rank=1) as (_, second):
            send(sender, 7)
            send(second, 7, state_of(70))
        with holder_of(0, devices=2) as fresh:
            fresh.announce(2, {1: address(other)}, ready=False)
            with pytest.raises(CheckFailed, match="its nonce, epoch or namespace is another"):
                fresh.fetch(address(other), 1, 0, 7)
            introduce(fresh, other, epoch=2)
            fresh.fetch(address(other), 1, 0, 7)
            with agent_of(fresh) as agent:
                assert [each.version for each in agent.welcome.own] == [7]
                assert np.array_equal(agent.load(7), state_of(7))
            assert np.array_equal(fresh.memory.view(StateOf(0, 1), 7), state_of(70))
            with pytest.raises(CheckFailed, match=r"^machine 1: version 6 is not there$"):
                fresh.fetch(address(other), 1, 0, 6)


def test_a_holder_that_ends_is_named_and_the_others_go_on() -> None:
    with two() as (one, other), rank_of(one) as (agent, sender):
        send(sender, 1)
        other.close()
        done = send(sender, 2)
        assert done.held == (0,)
        assert list(done.failed) == [1]
        assert done.failed[1].startswith(f"machine 1 at 127.0.0.1:{address(other)[1]} ")
        assert np.array_equal(agent.load(2), state_of(2))
        sender.reconnect()
        assert "cannot be reached" in sender.lost[1]
        assert send(sender, 3).held == (0,)


def test_a_receiver_that_does_not_keep_up_is_lost_in_time_and_may_come_back() -> None:
    kept: list[socket.socket] = []
    idle = Door(["127.0.0.1"], 0, lambda _: NONCE, lambda _, stream, __: kept.append(stream), print)
    idle.open()
    with holder_of(0) as one, holder_of(1) as other:
        one.announce(1, {1: ("127.0.0.1", idle.ports["127.0.0.1"])})
        introduce(other)
        with agent_of(one) as agent, Sender(agent, [0, 1], PIECES, OWN, window=4) as sender:
            sender.begin(1, [state_of(1)])
            done = sender.drain(0.3)
            assert done.held == (0,)
            assert "has taken 0 of 3 pieces of version 1 within 0.3 s" in done.failed[1]
            agent.welcome.peers[1] = address(other)  # type: ignore[index]
            sender.reconnect()
            assert sender.lost == {}
            assert send(sender, 2).held == (0, 1)
    idle.close()
    for each in kept:
        each.close()


def test_hosts_that_answer_nothing_are_tried_side_by_side_and_for_a_while() -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(3)]
        one = stack.enter_context(Holder([0, 3, 2, 1], 1, BYTES, namespace="job", nonce=NONCE, say=print))
        one.announce(1, {machine: each.getsockname() for machine, each in enumerate(silent, 1)})
        agent = stack.enter_context(agent_of(one))
        pieces = [piece for copy in (1, 2, 3) for piece in pieces_of([BYTES], copy)]
        with patch.object(sender_module, "GREETING_SECONDS", 0.2):
            sender = stack.enter_context(Sender(agent, [0, 1, 2, 3], pieces, OWN, window=4))
        assert list(sender.lost) == [1, 2, 3]
        calls, asked = threading.Barrier(3), sender_module.call

        def together(*given: Any, patience: float) -> Any:
            assert patience == 0.1
            calls.wait(20)  # until all are tried
            return asked(*given, patience=patience)

        with patch.object(sender_module, "call", together):
            sender.reconnect(0.1)
        assert "it is busy or no treadle agent" in sender.lost[3]
        assert send(sender, 1).held == (0,)


def test_streams_of_an_earlier_epoch_end() -> None:
    with two() as (one, other), rank_of(one) as (_, sender):
        send(sender, 1)
        sender.begin(2, [state_of(2)])
        sender.release(0)
        until(lambda: np.count_nonzero(sender.times()["taken"]) == 1)
        introduce(one, other, epoch=2)
        done = sender.drain(20)
        assert done.held == ()
        assert "refuses: epoch 2 has begun" in done.failed[1]
        assert held(one) == held(other) == [1]
        with rank_of(one) as (agent, again):
            assert agent.welcome.epoch == 2
            assert send(again, 2).held == (0, 1)


def test_a_second_rank_for_a_state_takes_it_over() -> None:
    with two() as (one, other), rank_of(one) as (_, sender), rank_of(one) as (_, second):
        sender.begin(1, [state_of(5)])
        sender.release(0)
        until(lambda: np.count_nonzero(sender.times()["taken"]) == 1)
        assert send(second, 1).held == (0, 1)
        assert "another stream began version 1" in sender.drain(20).failed[1]
        assert np.array_equal(other.memory.view(FIRST, 1), state_of(1))


def test_what_ranks_place_themselves_is_summed_and_compared() -> None:
    """The path of states in devices: another rank's pieces arrive in this one's memory."""
    state = state_of(3)
    with two() as (_, other), agent_of(other, rank=1) as agent:
        for version, unsummed in ((3, False), (4, True)):
            half = agent.begin(0, version, BYTES)
            half[:] = state
            for offset in (50_000, 0):
                part = None if unsummed else crc32c(state[offset : offset + 50_000])
                agent.placed(0, version, offset, 50_000, part)
            agent.commit(0, version, BYTES, crc32c(state))
        assert held(other) == [4, 3]
        assert np.array_equal(other.memory.view(FIRST, 4), state)
        agent.begin(0, 5, BYTES)
        agent.placed(0, 5, 0, BYTES)
        with pytest.raises(CheckFailed, match="version 5 has another sum than its owner counted"):
            agent.commit(0, 5, BYTES, crc32c(state) ^ 1)
        assert held(other) == [4]


def refusal(holder: Holder, *frames: Frame | bytes) -> str:
    """Why a holder ends the stream of rank 0 after `frames`."""
    stream, _ = call(address(holder), Greeting("rank", 0, "job", session=1), NONCE)
    with stream:
        for frame in frames:
            if isinstance(frame, bytes):
                stream.sendall(frame)
            else:
                write(stream, frame)
        while True:
            try:
                read(stream)
            except CheckFailed as error:
                return str(error)


def test_frames_that_cannot_be_are_refused_with_the_reason() -> None:
    begin = Frame(BEGIN, 0, 0, 1, length=100)
    with two() as (_, other):
        for expected, frames in {
            "rank 0 sent what is no frame": (b"x" * 64,),
            "a frame of kind 9 is not expected here": (Frame(9, 0, 0, 1),),
            "the state of machine 5, device 0 is not held here": (Frame(BEGIN, 5, 0, 1),),
            "it has 100001 bytes, and memory is for 100000": (Frame(BEGIN, 0, 0, 1, length=BYTES + 1),),
            "version 2 has not begun": (begin, Frame(COMMIT, 0, 0, 2, length=100)),
            "version 1 has no byte 0": (begin, Frame(COMMIT, 0, 0, 1, length=100)),
            "version 1 began with another length": (begin, Frame(COMMIT, 0, 0, 1, length=10)),
            "a piece says two lengths": (begin, Frame(PIECE, 0, 0, 1, length=8)),
            "version 8 is not there": (Frame(WANT, 0, 0, 8),),
            "a piece has bytes that are none of its version, or that are there": (
                begin,
                Frame(3, 0, 0, 1, offset=(1 << 64) - 50, length=100),
            ),
        }.items():
            assert refusal(other, *frames) == expected
        assert held(other) == []
        other.memory.reports()


def piece(body: bytes, sum: int) -> bytes:
    """The first bytes of version 1."""
    head = struct.pack("<IHHIIQQQQIII", 0x50435254, PIECE, 0, 0, 0, 1, 0, len(body), len(body), sum, sum, 0)
    return head + struct.pack("<I", crc32c(head)) + body


def test_a_piece_with_another_byte_than_its_sum_says_ends_the_stream() -> None:
    body = state_of(1, 100).tobytes()
    begin, commit = Frame(BEGIN, 0, 0, 1, length=100), Frame(COMMIT, 0, 0, 1, length=100, sum=crc32c(body))
    with two() as (_, other):
        right = piece(body, crc32c(body))
        assert refusal(other, begin, right[:-1] + bytes([right[-1] ^ 1])) == "rank 0 sent a body with a wrong sum"
        assert refusal(other, begin, b"x" + right[1:]) == "rank 0 sent what is no frame"
        assert refusal(other, begin, right[:20] + b"x" + right[21:]) == "rank 0 sent a head with a wrong sum"
        assert held(other) == []
        assert "rank 0 sent a body with a wrong sum, with 0 of 100 bytes of version 1" in other.memory.reports()[0]
        assert refusal(other, begin, right, right).startswith("a piece has bytes that are none of its version")
        assert refusal(other, begin, right, commit, Frame(9, 0, 0, 1)) == "a frame of kind 9 is not expected here"
        assert np.array_equal(other.memory.view(FIRST, 1), state_of(1, 100))


def test_memory_that_is_not_there_is_refused_in_one_line() -> None:
    with pytest.raises(LimitError) as refused:
        holder_of(0, most_bytes=100_000)
    assert str(refused.value) == ("the states of 2 devices need 0.4 MiB of memory, where 0.1 MiB are allowed")
    with pytest.raises(LimitError, match=r"^the states of 1 devices need .* GiB of memory, where .* are left of the "):
        StateMemory([FIRST], 1 << 45)


def test_the_memory_is_taken_at_the_begin_and_given_back() -> None:
    memory = StateMemory([FIRST, StateOf(1, 0)], 5000)
    assert [os.fstat(memory.memfd(each)).st_size for each in memory.states] == [2 * 8192] * 2
    memory.close()
    memory.close()
    with pytest.raises(CheckFailed, match="given back"):
        memory.versions()


def test_only_ranks_with_the_nonce_and_namespace_of_an_agent_that_is_ready_get_in() -> None:
    with holder_of(0) as one:
        with pytest.raises(ServerAway, match="the agent of machine 0 is not ready after 0 s"):
            agent_of(one)
        ready = threading.Timer(0.05, one.announce, (3, {}))
        ready.start()
        with agent_of(one, wait_seconds=20) as agent:
            assert (agent.welcome.epoch, agent.welcome.hosted, agent.welcome.own) == (3, (0, 1), ())
        ready.join()
        for changed in ({"nonce": bytes(32)}, {"namespace": "other"}):
            with pytest.raises(CheckFailed, match=r"the agent at this host refuses rank 0 of namespace"):
                agent_of(one, **changed)
        with pytest.raises(InputError, match="rank 1 belongs to another machine than 0"):
            agent_of(one, rank=1)
        with pytest.raises(CheckFailed, match="refuses rank 0"):
            call(address(one), Greeting("rank", 0, "job", session=2), NONCE)
        stream, _ = call(address(one), Greeting("rank", 0, "job"), NONCE)
        with stream:
            assert stream.recv(1) == b""


def test_a_state_that_the_plan_does_not_cover_is_refused() -> None:
    with two() as (one, _), rank_of(one) as (agent, sender):
        with pytest.raises(CheckFailed, match="a state of 100001 bytes, where the plan says at most 100000"):
            sender.begin(1, [np.zeros(BYTES + 1, np.uint8)])
        with pytest.raises(CheckFailed, match="not contiguous in host memory"):
            sender.begin(1, [torch.zeros(4, 4).t()])
        sender.begin(1, [state_of(1)])
        with pytest.raises(CheckFailed, match="version 1 is not drained yet"):
            sender.begin(2, [state_of(2)])
        assert sender.drain(20).held == (0, 1)
        with pytest.raises(InputError, match="found pieces for copy 1, expected one of 1 holders"):
            Sender(agent, [0], PIECES, OWN, window=1)


def test_a_version_that_is_read_is_not_overwritten() -> None:
    """By a fetch that is slow: the next but one version waits for it, and the fetch gets what it wanted."""
    with two() as (one, other), rank_of(one) as (_, sender):
        send(sender, 1)
        send(sender, 2)
        slow, there = socket.socketpair()
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        other.memory.stream(there, 1, "a slow reader")
        with slow:
            write(slow, Frame(WANT, 0, 0, 1))
            assert read(slow).op == BEGIN
            sender.begin(3, [state_of(3)])
            sender.release(2)
            sender.release_own(None)
            until(lambda: np.count_nonzero(sender.times()["taken"]) == 2)
            body = b"".join(exactly(slow, 64 + piece.bytes)[64:] for piece in PIECES)
            assert body == state_of(1).tobytes()
            assert read(slow).op == COMMIT
        assert sender.drain(20).held == (0, 1)
        assert held(other) == [3, 2]


def test_what_a_dead_rank_had_sent_is_refused_once_a_later_one_has_begun() -> None:
    with two() as (one, other):
        dead, _ = call(address(other), Greeting("rank", 0, "job", session=1), NONCE)
        with dead, rank_of(one) as (_, sender):
            send(sender, 1)
            send(sender, 2)
            write(dead, Frame(BEGIN, 0, 0, 1, length=BYTES))
            with pytest.raises(CheckFailed, match="a later stream began version 2 of the state of machine 0, device 0"):
                read(dead)
            assert held(other) == [2, 1]
