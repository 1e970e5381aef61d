"""A device's copy of its own state to its host, while messages of the training run: the copies of what arrives from
others have the idle spans for themselves ("GEMINI: Fast Failure Recovery in Distributed Training with In-Memory
Checkpoints")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from treadle.planner.passes.checkpoint.decisions import OwnPiece
from treadle.planner.passes.checkpoint.partition import copy_ns, require_few
from treadle.planner.passes.checkpoint.problem import CheckpointProblem


def own_pieces(problem: CheckpointProblem) -> tuple[OwnPiece, ...]:
    """The pieces in order, the last one all that no message covers. Raises InputError for too many."""
    if problem.copy_rate is None:
        return (OwnPiece(message=None, offset=0, bytes=problem.state_bytes),)
    require_few(problem, 1, problem.piece_bytes)
    return tuple(_cuts(problem, problem.copy_rate))


def own_late_ns(problem: CheckpointProblem, own: Iterable[OwnPiece]) -> int:
    """ns by which what no message covers makes the iteration longer: it is copied in the last span, before the update
    changes the weights."""
    left = sum(piece.bytes for piece in own if piece.message is None)
    return max(0, copy_ns(problem, left) - problem.spans[-1].length_ns)


def _cuts(problem: CheckpointProblem, rate: int) -> Iterator[OwnPiece]:
    offset = 0
    for place, message in enumerate(problem.messages):
        end = min(problem.state_bytes, offset + (message.end_ns - message.start_ns) * rate // 10**9)
        while offset < end:
            size = min(problem.piece_bytes, end - offset)
            yield OwnPiece(message=place, offset=offset, bytes=size)
            offset += size
    if offset < problem.state_bytes:
        yield OwnPiece(message=None, offset=offset, bytes=problem.state_bytes - offset)
