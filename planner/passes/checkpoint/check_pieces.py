"""Pieces and spans, priced again for the checker: everything is sent once, and no piece could be sooner or larger.

Spans that are filled greedily are not filled once more: a piece fits into what is left of its span, and one byte more
would not; where a span ends, not one byte more fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from treadle.planner.passes.checkpoint.check_placement import Finding
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions, StatePiece
from treadle.planner.passes.checkpoint.problem import CheckpointProblem, Variant

SECOND = 10**9
PATH = "$.decisions.pieces"


def piece_findings(decisions: CheckpointDecisions) -> Iterator[Finding]:
    """Bytes that are missing, sent twice or out of turn, then spans that are too full or not full."""
    found = [*_order(decisions)]
    yield from found or _greedy(decisions)


def link_ns(problem: CheckpointProblem, variant: Variant, size: int) -> int:
    """How long a piece keeps the next one from the link."""
    arrives = problem.alpha_ns + ceiling(size * SECOND, problem.link_rate)
    stored = ceiling(size * SECOND, problem.copy_rate) if problem.copy_rate else 0
    if variant == "no-pipeline" or problem.buffers == 1:
        return arrives + stored
    return max(arrives, stored)


def ceiling(value: int, by: int) -> int:
    return (value + by - 1) // by


def sent_late_ns(decisions: CheckpointDecisions) -> int:
    """By how much what is sent makes the iteration longer."""
    problem, variant = decisions.problem, decisions.variant
    end = len(problem.spans) - 1
    counts = Counter(piece.bytes for piece in decisions.pieces if piece.span == end or variant == "blocking")
    taken = sum(count * link_ns(problem, variant, size) for size, count in counts.items())
    return taken if variant == "blocking" else max(0, taken - problem.spans[-1].length_ns)


def _order(decisions: CheckpointDecisions) -> Iterator[Finding]:
    """Copies one after the other, each whole, in contiguous pieces, spans in order, buffers in turns."""
    problem, variant = decisions.problem, decisions.variant
    most = problem.buffer_bytes if variant == "naive" else problem.piece_bytes
    turns = problem.buffers if variant in ("planned", "blocking") else 1
    copy, offset, span = 1, 0, 0
    for place, piece in enumerate(decisions.pieces):
        if offset == problem.state_bytes:
            copy, offset = copy + 1, 0
        expected = {"copy": copy, "offset": offset, "buffer": place % turns}
        for name, right in expected.items():
            if getattr(piece, name) != right:
                yield f"{PATH}[{place}].{name}", getattr(piece, name), right
                return
        offset += piece.bytes
        if copy >= problem.copies:
            yield f"{PATH}[{place}].copy", copy, f"at most {problem.copies - 1}"
        elif piece.bytes > most or offset > problem.state_bytes:
            limit = min(most, problem.state_bytes - piece.offset)
            yield f"{PATH}[{place}].bytes", piece.bytes, f"at most {limit}"
        elif not span <= piece.span < len(problem.spans):
            yield f"{PATH}[{place}].span", piece.span, f"one from {span} to {len(problem.spans) - 1}"
        else:
            span = piece.span
            continue
        return
    sent = sum(piece.bytes for piece in decisions.pieces)
    if sent != (problem.copies - 1) * problem.state_bytes:
        yield PATH, f"{sent} bytes", f"{(problem.copies - 1) * problem.state_bytes}, all states but the own"


def _greedy(decisions: CheckpointDecisions) -> Iterator[Finding]:
    problem, variant, end = decisions.problem, decisions.variant, len(decisions.problem.spans) - 1
    if variant == "blocking":
        for place, piece in enumerate(decisions.pieces):
            if piece.span:
                yield f"{PATH}[{place}].span", piece.span, "0, when the iteration begins"
                return
    left = [problem.fill_ppm * span.length_ns // 10**6 for span in problem.spans]
    unlimited = 0 if variant == "blocking" else end
    for place, piece in enumerate(decisions.pieces):
        wrong = _larger(problem, variant, piece, None if piece.span == unlimited else left[piece.span])
        if wrong:
            yield f"{PATH}[{place}].bytes", piece.bytes, wrong
            return
        left[piece.span] = 0 if variant == "naive" else left[piece.span] - link_ns(problem, variant, piece.bytes)
    used = [0, *(piece.span for piece in decisions.pieces)]
    for place, (before, span) in enumerate(pairwise(used)):
        room = next((each for each in range(before, span) if link_ns(problem, variant, 1) <= left[each]), None)
        if room is not None:
            yield f"{PATH}[{place}].span", span, f"{room}, which has {left[room]} ns left"
            return


def _larger(problem: CheckpointProblem, variant: Variant, piece: StatePiece, budget: int | None) -> str:
    """Why the piece is not the largest one for what is left of its span; a span without budget takes everything."""
    most = problem.state_bytes if variant == "naive" else problem.piece_bytes
    most = min(most, problem.state_bytes - piece.offset)
    if budget is not None and link_ns(problem, variant, piece.bytes) > budget:
        return f"less, for {budget} ns that are left of the span"
    if piece.bytes < most and (budget is None or link_ns(problem, variant, piece.bytes + 1) <= budget):
        return f"more, up to {most}"
    return ""
