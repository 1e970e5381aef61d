"""The server's end of a worker's streams, in Python: it reads frames and writes those that a test asks for."""

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from mmap import mmap
from socket import AF_UNIX, SOCK_STREAM, socket, socketpair
from typing import NamedTuple

import numpy as np

from tests.treadle.runtime.server.sums import crc
from treadle.runtime.server.client_library import Client
from treadle.runtime.server.messages import JobLayout, LayoutKey

MAGIC = 0x56525354
VALUE, SETTINGS, FAILED = 4, 5, 6
HEAD = struct.Struct("<IHHIIQI")
ENTRY = np.dtype([("chunk", "<u4"), ("op", "<u2"), ("flags", "<u2"), ("step", "<u8")])
RING, PAGE = 1 << 12, 4096
RING_BYTES = 192 + RING * ENTRY.itemsize
PAIR_BYTES = -(-2 * RING_BYTES // PAGE) * PAGE


class Frame(NamedTuple):
    op: int
    flags: int
    chunk: int
    step: int
    body: bytes = b""

    def packed(self) -> bytes:
        head = HEAD.pack(MAGIC, self.op, self.flags, self.chunk, len(self.body), self.step, crc(self.body))
        return head + struct.pack("<I", crc(head)) + self.body


def read_frame(stream: socket) -> Frame:
    """The next one, whose sums must be right."""
    head = read(stream, 32)
    magic, op, flags, chunk, count, step, body_sum = HEAD.unpack(head[:28])
    assert magic == MAGIC
    assert struct.unpack("<I", head[28:])[0] == crc(head[:28])
    body = read(stream, count)
    assert crc(body) == body_sum
    return Frame(op, flags, chunk, step, body)


def read(stream: socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = stream.recv(count - len(found))
        assert part, "the worker ended its stream"
        found += part
    return bytes(found)


def layout_of(
    keys: Sequence[LayoutKey],
    places: Sequence[Sequence[int]],
    slot_servers: Sequence[int] = (0,),
    chunk_bytes: int = 64,
) -> JobLayout:
    return JobLayout(
        plan="", server=0, servers=max(slot_servers) + 1, rack=0, slot_servers=tuple(slot_servers), slots=(0,),
        addresses=(), rings=False, session=1, workers=1, racks=1, two_level=False, keys=tuple(keys),
        chunk_bytes=chunk_bytes, places=tuple(map(tuple, places)), optimizer="sgd", synchronous=True, groups=1, step=0,
        loads=1,
    )  # fmt: skip


@contextmanager
def joined(layout: JobLayout) -> Iterator[tuple[Client, list[socket]]]:
    """A worker's end, and the server's ends of its streams by slot."""
    client, ends = Client(layout), []
    try:
        for slot, server in enumerate(layout.slot_servers):
            near, far = socketpair(AF_UNIX, SOCK_STREAM)
            far.settimeout(20)
            ends.append(far)
            client.stream(server, layout.slot_servers[:slot].count(server), near.detach())
        yield client, ends
    finally:
        client.close()
        for far in ends:
            far.close()


class ServerRing:
    """One ring of a worker's arena, which a server maps."""

    def __init__(self, arena: mmap, begin: int, bell: int) -> None:
        self.put, self.taken = (np.frombuffer(arena, "<u8", 1, begin + at) for at in (0, 64))
        self.sleeps = np.frombuffer(arena, "<u4", 1, begin + 128)
        self.entries = np.frombuffer(arena, ENTRY, RING, begin + 192)
        self.bell = bell

    def take(self) -> tuple[int, int, int, int]:
        while self.put[0] == self.taken[0]:
            self.sleeps[0] = 1
            if self.put[0] == self.taken[0]:
                os.eventfd_read(self.bell)
        entry = self.entries[int(self.taken[0]) % RING].item()
        self.taken[0] += 1
        found: tuple[int, int, int, int] = entry
        return found

    def add(self, chunk: int, op: int, step: int) -> None:
        self.entries[int(self.put[0]) % RING] = (chunk, op, 0, step)
        self.put[0] += 1
        until = int(self.sleeps[0])
        if until and (until <= self.put[0] or op == FAILED):
            self.sleeps[0] = 0
            os.eventfd_write(self.bell, 1)
