"""Own copies, read again for the checker: bytes that are copied to the host while messages of the training run."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.passes.checkpoint.check_pieces import SECOND, ceiling
from treadle.planner.passes.checkpoint.check_placement import Finding
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions

PATH = "$.decisions.own"


def own_findings(decisions: CheckpointDecisions) -> Iterator[Finding]:
    """Bytes that are missing or copied twice, messages out of order or not used, and pieces of another size."""
    problem, offset = decisions.problem, 0
    rate, messages = problem.copy_rate or 0, problem.messages
    rooms = [(message.end_ns - message.start_ns) * rate // SECOND for message in messages]
    for place, piece in enumerate(decisions.own):
        path, left = f"{PATH}[{place}]", problem.state_bytes - offset
        if piece.offset != offset:
            yield f"{path}.offset", piece.offset, offset
            return
        first = next((number for number, room in enumerate(rooms) if room), None)
        if piece.message != first:
            yield f"{path}.message", _named(piece.message), f"{_named(first)}, the next one with room for copies"
            return
        size = left if first is None else min(left, problem.piece_bytes, rooms[first])
        if piece.bytes != size:
            yield f"{path}.bytes", piece.bytes, size
            return
        offset += size
        if first is not None:
            rooms[first] -= size
    if offset != problem.state_bytes:
        yield PATH, f"{offset} bytes", f"{problem.state_bytes}, the whole state"


def own_late_ns(decisions: CheckpointDecisions) -> int:
    """By how much the copies that no message covers, and that begin with the last span, make the iteration longer."""
    problem = decisions.problem
    if problem.copy_rate is None:
        return 0
    rest = sum(piece.bytes for piece in decisions.own if piece.message is None)
    return max(0, ceiling(rest * SECOND, problem.copy_rate) - problem.spans[-1].length_ns)


def _named(message: int | None) -> object:
    return "none" if message is None else message
