"""The compiled end of a worker against a server in Python."""

import fcntl
import os
import random
import socket
import struct
import threading
from collections.abc import Callable
from mmap import mmap

import msgspec
import numpy as np
import pytest

from tests.treadle.runtime.server.stand_in import (
    FAILED,
    PAGE,
    PAIR_BYTES,
    RING,
    RING_BYTES,
    SETTINGS,
    VALUE,
    Frame,
    ServerRing,
    joined,
    layout_of,
    read,
    read_frame,
)
from tests.treadle.runtime.server.sums import compiled_sum
from treadle.planner.errors import CheckFailed
from treadle.planner.passes.server.problem import SETTINGS_NUMBERS
from treadle.runtime.server.client_library import PULL, PUSH, PUSH_PULL, Client
from treadle.runtime.server.messages import LayoutKey

KEYS = (LayoutKey("a", 40, "float32", 0), LayoutKey("b", 33, "bfloat16", 0), LayoutKey("c", 7, "float16", 0))
"""Three chunks of 64, 64 and 32 bytes, two of 64 and 2, and one of 14."""
PLACES = ((0, 1, 2), (1, 0), (2,))
TWO_SERVERS = layout_of(KEYS, PLACES, slot_servers=(0, 1, 0))
ONE_KEY = layout_of(KEYS[:1], ((0, 0, 0),))
EMPTY = 1
SECONDS = 20_000


@pytest.mark.parametrize("options", [(), ("-march=x86-64",)], ids=["instruction", "tables"])
def test_sums_are_crc_32c(options: tuple[str, ...]) -> None:
    crc = compiled_sum(*options)
    assert crc(0, b"123456789", 9) == 0xE3069283
    data = random.Random(1).randbytes(5000)
    for cut in (0, 1, 9, 1535, 1537, 3200):
        assert crc(crc(0, data, cut), data[cut:], len(data) - cut) == crc(0, data, len(data))


def test_every_chunk_goes_to_its_core_in_the_order_of_pushes_and_comes_back() -> None:
    with joined(TWO_SERVERS) as (client, ends):
        for key in range(3):
            client.gradient(key)[:] = np.arange(len(client.gradient(key))) + key
        for key in (2, 0, 1):
            client.push(key, 1, PUSH_PULL)
        found = [[read_frame(end) for _ in range(count)] for end, count in zip(ends, (2, 2, 2), strict=True)]
        assert [[frame.chunk for frame in frames] for frames in found] == [[0, 4], [1, 3], [5, 2]]
        assert all(frame[:2] == (PUSH_PULL, 0) and frame.step == 1 for frames in found for frame in frames)
        gradient = client.gradient(0).tobytes()
        assert [found[0][0].body, found[1][0].body, found[2][1].body] == [
            gradient[:64],
            gradient[64:128],
            gradient[128:],
        ]
        for end, frames in zip(ends, found, strict=True):
            for frame in reversed(frames):
                assert not client.wait(-1, 1, 0)
                end.sendall(Frame(VALUE, 0, frame.chunk, 1, bytes(255 - byte for byte in frame.body)).packed())
        assert client.wait(-1, 1, SECONDS)
        for key in range(3):
            assert client.value(key).tolist() == (255 - client.gradient(key)).tolist()


def test_a_key_is_done_before_the_others_are() -> None:
    with joined(TWO_SERVERS) as (client, ends):
        for key in range(3):
            client.push(key, 1, PUSH_PULL)
        ends[2].sendall(Frame(VALUE, 0, 5, 1, b"v" * 14).packed())
        assert client.wait(2, 1, SECONDS)
        assert not client.wait(0, 1, 0)
        assert not client.wait(-1, 1, 0)


def test_a_push_is_done_when_it_has_left_and_a_pull_may_follow_it() -> None:
    with joined(ONE_KEY) as (client, (end,)):
        client.push(0, 1, PUSH)
        client.push(0, 1, PULL)
        frames = [read_frame(end) for _ in range(6)]
        assert [frame.op for frame in frames] == [PUSH] * 3 + [PULL] * 3
        assert [len(frame.body) for frame in frames] == [64, 64, 32, 0, 0, 0]
        end.sendall(b"".join(Frame(VALUE, 0, chunk, 4, bytes(len(frames[chunk].body))).packed() for chunk in range(3)))
        assert client.wait(0, 1, SECONDS)
        client.push(0, 2, PUSH)
        assert client.wait(0, 2, SECONDS)


def test_an_empty_push_has_no_body() -> None:
    with joined(ONE_KEY) as (client, (end,)):
        client.push(0, 1, PUSH_PULL, empty=True)
        assert [read_frame(end) for _ in range(3)] == [Frame(PUSH_PULL, EMPTY, chunk, 1) for chunk in range(3)]


def test_settings_reach_every_core_ahead_of_the_pushes() -> None:
    with joined(TWO_SERVERS) as (client, ends):
        numbers = np.arange(SETTINGS_NUMBERS, dtype=np.float64).reshape(1, SETTINGS_NUMBERS)
        client.settings(1, numbers)
        numbers[:] = 0
        client.push(0, 1, PUSH)
        for end in ends:
            assert read_frame(end) == Frame(SETTINGS, 0, 1, 1, np.arange(SETTINGS_NUMBERS, dtype=np.float64).tobytes())
            assert read_frame(end).op == PUSH


def test_large_chunks_pass_a_small_socket_both_ways_at_once() -> None:
    layout = layout_of((LayoutKey("a", 1 << 19, "float32", 0),), ((0, 0),), chunk_bytes=1 << 20)
    with joined(layout) as (client, (end,)):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.gradient(0)[:] = np.frombuffer(random.Random(2).randbytes(1 << 21), np.uint8)
        client.push(0, 1, PUSH_PULL)
        first = read_frame(end)
        writer = threading.Thread(target=end.sendall, args=(Frame(VALUE, 0, 0, 1, first.body[::-1]).packed(),))
        writer.start()
        second = read_frame(end)
        writer.join()
        end.sendall(Frame(VALUE, 0, 1, 1, second.body).packed())
        assert client.wait(0, 1, SECONDS)
        gradient = client.gradient(0)
        assert np.array_equal(client.value(0)[: 1 << 20], gradient[: 1 << 20][::-1])
        assert np.array_equal(client.value(0)[1 << 20 :], gradient[1 << 20 :])


def damaged(place: int) -> bytes:
    frame = bytearray(Frame(VALUE, 0, 0, 1, bytes(64)).packed())
    frame[place] ^= 4
    return bytes(frame)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (damaged(0), "server 0 sent what is no frame (core slot 0)"),
        (damaged(16), "server 0 sent a head with a wrong sum (core slot 0)"),
        (damaged(50), "server 0 sent a body with a wrong sum (core slot 0)"),
        (Frame(VALUE, 0, 0, 1, bytes(60)).packed(), "server 0 sent a value of another size (core slot 0)"),
        (Frame(VALUE, 0, 0, 1, bytes(64)).packed() * 2, "server 0 sent a value that was not asked for (core slot 0)"),
        (Frame(VALUE, 0, 9, 1, bytes(64)).packed(), "server 0 sent a value that was not asked for (core slot 0)"),
        (Frame(PUSH, 0, 0, 1, bytes(64)).packed(), "server 0 sent a frame that is none of a server's (core slot 0)"),
        (
            Frame(FAILED, 0, 0, 1, b"x" * 4097).packed(),
            "server 0 sent a frame that is none of a server's (core slot 0)",
        ),
        (Frame(VALUE, 0, 0, 1, bytes(64)).packed()[:-1], "server 0 closed its stream (core slot 0)"),
        (Frame(FAILED, 0, 0, 1, b"no such step").packed(), "server 0 says: no such step (core slot 0)"),
        (b"", "server 0 closed its stream (core slot 0)"),
    ],
    ids=["magic", "head", "body", "size", "twice", "chunk", "op", "text", "part", "failed", "closed"],
)
def test_what_a_server_does_wrong_ends_every_wait_with_its_reason(answer: bytes, message: str) -> None:
    with joined(ONE_KEY) as (client, (end,)):
        client.push(0, 1, PUSH_PULL)
        for _ in range(3):
            read_frame(end)
        end.sendall(answer)
        end.shutdown(socket.SHUT_WR)
        for _ in range(2):
            with pytest.raises(CheckFailed) as caught:
                client.wait(-1, 1, SECONDS)
            assert str(caught.value) == message
        with pytest.raises(CheckFailed, match="server 0"):
            client.push(0, 2, PUSH_PULL)


def test_the_reason_of_a_server_arrives_although_it_takes_nothing_more() -> None:
    layout = layout_of((LayoutKey("a", 1 << 20, "float32", 0),), ((0,),), chunk_bytes=1 << 22)
    with joined(layout) as (client, (end,)):
        client.push(0, 1, PUSH_PULL)
        read(end, 32)
        end.sendall(Frame(FAILED, 0, 0, 1, b"worker 3 is gone").packed())
        end.close()
        with pytest.raises(CheckFailed, match="server 0 says: worker 3 is gone"):
            client.wait(0, 1, SECONDS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda client: client.push(0, 1, PUSH_PULL), "key 0 is asked for again before step 1 is done with it"),
        (lambda client: client.push(0, 1, PULL), "key 0 is asked for again before step 1 is done with it"),
        (lambda client: client.push(1, 1, PULL), "no key 1"),
        (lambda client: client.push(0, 1, VALUE), "no request 4"),
        (lambda client: client.wait(0, 2), "key 0 has not been asked for in step 2"),
        (lambda client: client.stream(0, 0, os.open(os.devnull, os.O_RDONLY)), "after the first request"),
    ],
    ids=["push", "pull", "key", "request", "step", "stream"],
)
def test_requests_that_are_refused_change_nothing(call: Callable[[Client], object], message: str) -> None:
    with joined(ONE_KEY) as (client, (end,)):
        client.push(0, 1, PUSH_PULL)
        with pytest.raises(CheckFailed, match=message):
            call(client)
        for chunk, size in enumerate((64, 64, 32)):
            end.sendall(Frame(VALUE, 0, chunk, 1, bytes(size)).packed())
        assert client.wait(0, 1, SECONDS)


def test_no_request_before_every_core_has_a_stream() -> None:
    client = Client(TWO_SERVERS)
    with pytest.raises(CheckFailed, match="core slot 0 of server 0 has no stream yet"):
        client.push(0, 1, PUSH)
    client.close()


def test_buffers_outlive_the_client_and_cannot_shrink() -> None:
    client = Client(ONE_KEY)
    assert fcntl.fcntl(client.memfd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    value = client.value(0)
    client.close()
    with pytest.raises(CheckFailed, match="the worker has left the job"):
        client.push(0, 1, PUSH)
    value[:] = 7
    assert value.sum() == 7 * 160


def test_with_two_levels_the_server_of_a_rack_has_all_chunks() -> None:
    layout = msgspec.structs.replace(
        layout_of(KEYS[:1], ((0, 3, 2),), slot_servers=(0, 0, 1, 1)), two_level=True, server=1, racks=2, rack=1
    )
    client = Client(layout)
    ends = []
    for slot in range(2):
        near, far = socket.socketpair()
        ends.append(far)
        client.stream(1, slot, near.detach())
    client.push(0, 1, PUSH)
    assert [read_frame(ends[slot]).chunk for slot in (0, 0, 1)] == [0, 2, 1]
    client.close()
    for end in ends:
        end.close()


def shared(client: Client, slots: int) -> tuple[mmap, list[tuple[ServerRing, ServerRing]]]:
    """A server that maps the arena of its only worker: rings to it and from it, by slot."""
    arena = mmap(client.memfd, 0)
    bells = [os.eventfd(0) for _ in range(slots)]
    rings = [
        (
            ServerRing(arena, PAGE + slot * PAIR_BYTES, bells[slot]),
            ServerRing(arena, PAGE + slot * PAIR_BYTES + RING_BYTES, client.bells(0)[slot]),
        )
        for slot in range(slots)
    ]
    client.rings(0, [os.dup(bell) for bell in bells])
    return arena, rings


def test_over_rings_nothing_but_entries_travels() -> None:
    layout = layout_of(KEYS, ((0, 1, 0), (1, 0), (1,)), slot_servers=(0, 0))
    client = Client(layout)
    arena, rings = shared(client, 2)
    settings, gradients, values = struct.unpack_from("<3Q", arena, 24)
    client.settings(3, np.full((1, SETTINGS_NUMBERS), 2.5))
    for key in (1, 0, 2):
        client.gradient(key)[:] = key + 1
        client.push(key, 3, PUSH_PULL)
    assert [rings[0][0].take()[0] for _ in range(4)] == [1, 4, 0, 2]
    assert [rings[1][0].take() for _ in range(4)] == [(1, SETTINGS, 0, 3), *((c, PUSH_PULL, 0, 3) for c in (3, 1, 5))]
    assert struct.unpack_from("<2d", arena, settings + (2 + 1) * SETTINGS_NUMBERS * 8) == (2.5, 2.5)
    assert arena[gradients + 192 : gradients + 192 + 66] == bytes([2] * 66)
    for slot, chunks in enumerate(((0, 2, 4), (1, 3, 5))):
        for chunk in chunks:
            begin, size = 64 * chunk, (64, 64, 32, 64, 2, 14)[chunk]
            arena[values + begin : values + begin + size] = arena[gradients + begin : gradients + begin + size]
            assert not client.wait(-1, 3, 0)
            rings[slot][1].add(chunk, VALUE, 3)
    assert client.wait(-1, 3, SECONDS)
    for key in range(3):
        assert client.value(key).tolist() == client.gradient(key).tolist()
    client.close()


def test_a_full_ring_and_settings_in_use_make_the_worker_wait() -> None:
    layout = layout_of((LayoutKey("a", 16 * (RING + 10), "float32", 0),), ((0,) * (RING + 10),))
    client = Client(layout)
    _, [(ring, _)] = shared(client, 1)
    for step in (1, 2, 3):
        client.settings(step, np.full((1, SETTINGS_NUMBERS), float(step)))
    client.push(0, 3, PUSH)
    assert not client.wait(0, 3, 20)
    assert ring.put[0] == 2, "settings of step 3 are to lie where those of step 1 are"
    assert [ring.take()[1::2] for _ in range(3)] == [(SETTINGS, 1), (SETTINGS, 2), (SETTINGS, 3)]
    assert [ring.take()[0] for _ in range(RING + 10)] == list(range(RING + 10))
    assert client.wait(0, 3, SECONDS)
    client.close()


def test_a_worker_asks_to_be_woken_when_a_key_can_be_done() -> None:
    client = Client(layout_of(KEYS[:2], ((0, 0, 0), (0, 0))))
    _, [(ring, values)] = shared(client, 1)
    for key in (0, 1):
        client.push(key, 1, PUSH_PULL)
    chunks = [ring.take()[0] for _ in range(5)]
    for count, chunk in enumerate(chunks):
        wanted = (2, 2, 3, 5, 5)[count]  # key 1 has two chunks; then key 0 has one left; then key 1 is the next
        while values.sleeps[0] != wanted:
            assert not client.wait(-1, 1, 1)
        values.add(chunk, VALUE, 1)
    assert client.wait(-1, 1, SECONDS)
    client.close()


@pytest.mark.parametrize(
    ("entry", "message"),
    [((3, VALUE, 1), "not asked for"), ((0, PUSH, 1), "none of a server's"), ((0, FAILED, 1), "ended this worker's")],
    ids=["value", "op", "failed"],
)
def test_wrong_entries_end_every_wait(entry: tuple[int, int, int], message: str) -> None:
    client = Client(ONE_KEY)
    _, [(taken, ring)] = shared(client, 1)
    client.push(0, 1, PUSH_PULL)
    assert [taken.take()[0] for _ in range(3)] == [0, 1, 2]
    while not ring.sleeps[0]:
        assert not client.wait(-1, 1, 1)
    for _ in range(1 if entry[1] == FAILED else 3):
        ring.add(*entry)
    with pytest.raises(CheckFailed, match=f"server 0 .*{message}"):
        client.wait(0, 1, SECONDS)
    client.close()
