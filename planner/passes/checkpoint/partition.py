"""Pieces of the state in the idle spans of the links: the checkpoint partition of "GEMINI: Fast Failure Recovery in
Distributed Training with In-Memory Checkpoints" with three faults of the printed algorithm repaired.

A span whose rest is shorter than a latency ends; a span pays for what was sent in it, not for what is left to send; and
copies 1 to m - 1 are sent, since the first one is the machine's own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.checkpoint.decisions import StatePiece
from treadle.planner.passes.checkpoint.problem import CheckpointProblem, Variant

MOST_PIECES = 200_000
PieceCost = Callable[[int], int]
"""ns of a piece by its bytes."""


def transfer_ns(size: int, rate: int) -> int:
    """ns of `size` bytes at `rate` bytes per second, rounded up."""
    return -(-size * 10**9 // rate)


def copy_ns(problem: CheckpointProblem, size: int) -> int:
    """ns of a copy of `size` bytes from a device to its host; 0 where states are in host memory."""
    return 0 if problem.copy_rate is None else transfer_ns(size, problem.copy_rate)


def piece_cost(problem: CheckpointProblem, variant: Variant) -> PieceCost:
    """ns for which a piece keeps the link: the longer of its transfer and its copy out of the buffer, or both in a row
    where no other buffer takes the next piece meanwhile."""
    in_turns = problem.buffers > 1 and variant != "no-pipeline"

    def cost(size: int) -> int:
        sent, copied = problem.alpha_ns + transfer_ns(size, problem.link_rate), copy_ns(problem, size)
        return max(sent, copied) if in_turns else sent + copied

    return cost


def turns_of(problem: CheckpointProblem, variant: Variant) -> int:
    """How many buffers take turns, so that as many pieces are in flight at once."""
    return problem.buffers if variant in ("planned", "blocking") else 1


def partition(problem: CheckpointProblem, variant: Variant = "planned") -> tuple[StatePiece, ...]:
    """The pieces of copies 1 to m - 1, in the order in which they are sent.

    Raises InputError for more than MOST_PIECES, and InfeasibleError for the variant `naive` with a piece that no buffer
    holds.
    """
    require_few(problem, problem.copies - 1, problem.state_bytes if variant == "naive" else problem.piece_bytes)
    turns = turns_of(problem, variant)
    pieces = tuple(
        StatePiece(span=span, copy=copy, offset=offset, bytes=size, buffer=number % turns)
        for number, (span, copy, offset, size) in enumerate(_cuts(problem, variant))
    )
    largest = max((piece.bytes for piece in pieces), default=0)
    if variant == "naive" and largest > problem.buffer_bytes:
        raise InfeasibleError(
            f"{problem.name}: one piece for each span needs a buffer of {format_bytes(largest)} on every device, "
            f"which has {format_bytes(problem.buffer_bytes)}"
        )
    return pieces


def pieces_late_ns(problem: CheckpointProblem, pieces: Iterable[StatePiece], variant: Variant) -> int:
    """ns by which the pieces make the iteration longer: what the last span does not hold, all of them if `blocking`."""
    cost, last = piece_cost(problem, variant), len(problem.spans) - 1
    if variant == "blocking":
        return sum(cost(piece.bytes) for piece in pieces)
    load = sum(cost(piece.bytes) for piece in pieces if piece.span == last)
    return max(0, load - problem.spans[last].length_ns)


def require_few(problem: CheckpointProblem, states: int, size: int) -> None:
    """Raises InputError where `states` states in pieces of `size` bytes are more than MOST_PIECES."""
    if states * problem.state_bytes > MOST_PIECES * size:
        found = f"found pieces of {format_bytes(size)}, expected larger buffers: a plan has at most {MOST_PIECES:,}"
        raise InputError(f"{found} pieces", where=problem.name, path="$.buffer_bytes")


def _cuts(problem: CheckpointProblem, variant: Variant) -> Iterator[tuple[int, int, int, int]]:
    """(span, copy, offset, bytes) of each piece."""
    cost, naive = piece_cost(problem, variant), variant == "naive"
    most = problem.state_bytes if naive else problem.piece_bytes
    spans = iter(enumerate(_budgets(problem, variant)))
    span, budget = next(spans)
    for copy in range(1, problem.copies):
        offset = 0
        while offset < problem.state_bytes:
            size = min(problem.state_bytes - offset, most if budget is None else _largest(cost, most, budget))
            if size == 0:
                span, budget = next(spans)
                continue
            yield span, copy, offset, size
            offset += size
            if budget is not None:
                budget = 0 if naive else budget - cost(size)


def _budgets(problem: CheckpointProblem, variant: Variant) -> list[int | None]:
    """ns that may be filled of each span that is used; None for one without end."""
    used = () if variant == "blocking" else problem.spans[:-1]
    return [*(problem.fill_ppm * span.length_ns // 10**6 for span in used), None]


def _largest(cost: PieceCost, most: int, budget: int) -> int:
    """The most bytes, up to `most`, whose cost is within the budget."""
    return most if cost(most) <= budget else max(0, bisect_right(range(most), budget, key=cost) - 1)
