"""Frames of `wire/frame.h` that Python sends and reads, and the sums that go with them."""

from __future__ import annotations

import ctypes
import socket
import struct
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from treadle.planner.errors import CheckFailed
from treadle.runtime.native_build import compile_library
from treadle.runtime.wire.greeting import exactly
from treadle.runtime.wire.texts import wire_texts

BEGIN, PIECE, PLACED, COMMIT, WANT, BEGUN, TAKEN, DONE, FOUND, REFUSED = range(1, 11)
UNSUMMED, HERE = 1, 2
MOST_TEXT = 400
_FRAME = struct.Struct("<IHHIIQQQQIIII")
_MAGIC = 0x50435254


class Frame(NamedTuple):
    """Without a body; `machine` and `device` say whose state."""

    op: int
    machine: int
    device: int
    version: int
    offset: int = 0
    length: int = 0
    sum: int = 0
    flags: int = 0


@cache
def library() -> Any:
    """The compiled sender. Raises MissingBackendError without g++."""
    loaded = ctypes.CDLL(str(compile_library(wire_texts("treadle.runtime.checkpoint.wire"), "sender.cpp", "process")))
    handle, number, word, pointer = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p
    half, count = ctypes.c_uint32, ctypes.c_int64
    for name, result, arguments in (
        ("sender_open", handle, [half, half, number, word, number, pointer, count]),
        ("sender_close", None, [handle]),
        ("sender_message", ctypes.c_char_p, []),
        ("sender_lane", None, [handle, number, number, pointer, ctypes.c_char_p]),
        ("sender_begin", number, [handle, word, pointer, count]),
        ("sender_begun", None, [handle, number]),
        ("sender_release", None, [handle, ctypes.c_int32, number]),
        ("sender_drain", None, [handle, number]),
        ("sender_report", None, [handle, number, pointer]),
        ("sender_times", count, [handle, pointer, count]),
        ("sender_sum", half, [half, pointer, word]),
        ("sender_joined", half, [half, half, word]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def crc32c(data: Any, before: int = 0) -> int:
    """The CRC-32C of bytes in a row (an array, a buffer) that follow others whose sum is `before`."""
    array = np.frombuffer(data, np.uint8)
    return int(library().sender_sum(before, array.ctypes.data, array.nbytes))


def joined(first: int, second: int, length: int) -> int:
    """The CRC-32C of two parts, from theirs; the second one has `length` bytes."""
    return int(library().sender_joined(first, second, length))


def write(stream: socket.socket, frame: Frame) -> None:
    """Raises OSError where the other end is gone."""
    op, machine, device, version, offset, length, sum, flags = frame
    head = _FRAME.pack(_MAGIC, op, flags, machine, device, version, offset, length, 0, sum, 0, 0, 0)[:-4]
    stream.sendall(head + crc32c(head).to_bytes(4, "little"))


def read(stream: socket.socket) -> Frame:
    """The next frame. Raises OSError where the stream ends, CheckFailed with the reason for what is none or a
    refusal."""
    head = exactly(stream, _FRAME.size)
    magic, op, flags, machine, device, version, offset, length, body, sum, body_sum, _, head_sum = _FRAME.unpack(head)
    if magic != _MAGIC or crc32c(head[:-4]) != head_sum or body > MOST_TEXT:
        raise CheckFailed("it sent what is no frame")
    text = exactly(stream, body)
    if crc32c(text) != body_sum:
        raise CheckFailed("it sent a body with a wrong sum")
    if op == REFUSED:
        raise CheckFailed(text.decode(errors="replace"))
    return Frame(op, machine, device, version, offset, length, sum, flags)
