"""What a piece of a checkpoint costs between two agents of this machine: a latency and a rate, from sends of two
sizes."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.checkpoint.decisions import OwnPiece, StatePiece
from treadle.runtime.checkpoint.holder import Holder
from treadle.runtime.checkpoint.local import LocalAgent
from treadle.runtime.checkpoint.sender import Sender

SMALL, LARGE, TIMES = 4096, 1 << 20, 16
"""Bytes of the pieces, and how many of each."""


class PieceLink(NamedTuple):
    """A piece takes `alpha_ns`, and its bytes at `rate` bytes per second."""

    alpha_ns: int
    rate: int


def measured_link() -> PieceLink:
    """The link from a rank to another machine's agent, where both are processes here. Raises MissingBackendError
    without g++."""
    nonce, total = secrets.token_bytes(32), TIMES * (SMALL + LARGE)
    state = np.ones(total, np.uint8)
    sizes = [SMALL] * TIMES + [LARGE] * TIMES
    offsets = np.cumsum([0, *sizes[:-1]]).tolist()
    pieces = [
        StatePiece(span=0, copy=1, offset=offset, bytes=size, buffer=0)
        for offset, size in zip(offsets, sizes, strict=True)
    ]
    own = [OwnPiece(message=None, offset=0, bytes=total)]
    made = partial(Holder, devices=1, state_bytes=total, namespace="link", nonce=nonce, say=lambda line: None)
    with made([0, 1]) as near, made([1, 0]) as far:
        address, port = next(iter(far.ports.items()))
        near.announce(1, {1: (address, port)})
        far.announce(1, {})
        with LocalAgent(near.local, 0, namespace="link", nonce=nonce) as agent:
            return _fitted([_times(agent, pieces, own, state) for _ in range(3)])


def _times(
    agent: LocalAgent, pieces: Sequence[StatePiece], own: Sequence[OwnPiece], state: NDArray[np.uint8]
) -> dict[int, list[int]]:
    """By size, ns of the pieces, one after the other."""
    with Sender(agent, (0, 1), pieces, own, window=1) as sender:
        sender.begin(0, [state])
        sender.release(0)
        sender.drain(60.0)
        found: dict[int, list[int]] = {SMALL: [], LARGE: []}
        for each in sender.times():
            if each["copy"] == 1:
                found[int(each["bytes"])].append(int(each["taken"]) - int(each["begun"]))
    return found


def _fitted(found: Sequence[dict[int, list[int]]]) -> PieceLink:
    """From the medians of both sizes; the first run finds new memory and is left out."""
    small, large = (median([ns for each in found[1:] for ns in each[size]]) for size in (SMALL, LARGE))
    per_byte = max(1.0, large - small) / (LARGE - SMALL)
    return PieceLink(max(0, round(small - SMALL * per_byte)), max(1, round(1e9 / per_byte)))
