"""The memory that a server takes: sums, weights, states, a copy for snapshots, and gradients that come early."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from treadle.planner.passes.server.chunking import Ints, KeyChunks
from treadle.planner.passes.server.problem import STATES, ServerProblem


class BufferKind(NamedTuple):
    """What each chunk has `copies` of: sums as float32, or what it is as it travels."""

    name: str
    copies: int
    of: Literal["sums", "travels"]


def buffer_kinds(problem: ServerProblem, two_level: bool) -> tuple[BufferKind, ...]:
    """The buffers of a chunk on a server that handles it, in their order.

    Weights and states exist twice, so that the version before the newest stays whole; gradients are kept until it is
    their worker's turn, unless they are added as they come."""
    states = STATES[problem.optimizer]
    local = problem.workers // problem.racks if two_level else problem.workers
    in_turn = problem.synchronous and not problem.arrival_order and problem.carrier != "shared" and local > 1
    kinds = (
        BufferKind("sum", 1, "sums"),
        BufferKind("sums of racks", problem.racks if two_level else 0, "sums"),
        BufferKind("weights", 2, "sums"),
        BufferKind("states", 2 * states, "sums"),
        BufferKind("snapshot", 1 + states, "sums"),
        BufferKind("gradients", local if in_turn else 0, "travels"),
    )
    return tuple(kind for kind in kinds if kind.copies)


def server_bytes(problem: ServerProblem, chunks: KeyChunks, places: Ints, two_level: bool) -> int:
    """Bytes of the fullest server."""
    cores = len(problem.machine.interfaces) * problem.machine.cores_per_interface
    sizes = {"sums": chunks.padded_sums, "travels": chunks.padded_bytes}
    taken = np.zeros(len(chunks.bytes), dtype=np.int64)
    for kind in buffer_kinds(problem, two_level):
        taken += kind.copies * sizes[kind.of]
    if two_level:
        return int(taken.sum())
    found = np.zeros(problem.servers, dtype=np.int64)
    np.add.at(found, places // cores, taken)
    return int(found.max())
