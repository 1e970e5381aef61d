"""Routes of a draft in smaller pieces, so that a threadblock passes on one piece while it receives the next.

On links alone a method cuts its buffer into as many pieces as pipelining and the latency of messages ask for. Programs
gain from more: a message occupies its threadblock at both ends, and sums of one chunk at one rank take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from treadle.planner.documents.collective import max_chunkup
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes.collective.messages import MAX_REORDERED, Message, schedule, timed
from treadle.planner.passes.collective.retime import algorithm_of
from treadle.planner.passes.collective.synthesis import Draft, Request

LEAST_PIECE = 512
"""Bytes below which a chunk is not cut."""


def in_pieces(draft: Draft, request: Request, count: int) -> Draft | None:
    """`draft` with every chunk cut into `count` pieces that take its route, in the best order found; None where chunks
    would be smaller than LEAST_PIECE or more than a plan may have, and for what switches do."""
    old = draft.problem
    chunkup = old.chunkup * count
    if draft.switched or old.chunk_bytes < count * LEAST_PIECE or chunkup > max_chunkup(old.collective, old.ranks):
        return None
    roots = None if old.roots is None else [root for root in old.roots for _ in range(count)]
    problem = replace(request, size_bytes=old.input_bytes).problem(chunkup, roots)
    messages = list(_cut(algorithm_of(old, draft.transfers).messages, count))
    final = schedule if len(messages) <= MAX_REORDERED else timed
    return Draft(
        problem=problem,
        transfers=final(problem, messages),
        method=f"{draft.method}, in pieces of {format_bytes(problem.chunk_bytes)}",
        status=draft.status,
        floor=draft.floor,
        options=draft.options,
    )


def _cut(messages: Sequence[Message], count: int) -> Iterator[Message]:
    """Every message as `count` messages one after the other, the two messages of an exchange still side by side.
    A message of several chunks stays one of neighbours."""
    at = 0
    while at < len(messages):
        pair = messages[at : at + 1 + (at + 1 < len(messages) and messages[at + 1].twin)]
        at += len(pair)
        for piece in range(count):
            for message in pair:
                cut = [chunk * count + j for chunk in message.chunks for j in range(count)]
                size = len(message.chunks)
                yield message._replace(chunks=tuple(cut[piece * size : (piece + 1) * size]))
