"""Steps of more chunks than a runtime counts become several steps of fewer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treadle.codegen.collective.program import BlockStep, CollectiveProgram, Threadblock


def split_counts(program: CollectiveProgram, most: int) -> CollectiveProgram:
    """`program` with at most `most` chunks in a step. Both ends of a message are cut alike, and its parts follow each
    other, so the order on every connection stays; a dependence on a step becomes one on its last part."""
    if all(step.count <= most for _, _, step in program.steps()):
        return program
    ranks = []
    for rank in program.ranks:
        last = [_last_parts(block, most) for block in rank.threadblocks]
        blocks = tuple(
            replace(block, steps=tuple(part for step in block.steps for part in _parts(step, most, last)))
            for block in rank.threadblocks
        )
        ranks.append(replace(rank, threadblocks=blocks))
    return replace(program, ranks=tuple(ranks))


def _last_parts(block: Threadblock, most: int) -> list[int]:
    """The position of the last part of every step."""
    positions, length = [], 0
    for step in block.steps:
        length += max(1, -(-step.count // most))
        positions.append(length - 1)
    return positions


def _parts(step: BlockStep, most: int, last: list[list[int]]) -> Iterator[BlockStep]:
    depends = None if step.depends is None else (step.depends[0], last[step.depends[0]][step.depends[1]])
    if step.count <= most:
        yield replace(step, depends=depends)
        return
    for first in range(0, step.count, most):
        yield replace(
            step,
            src=step.src and (step.src[0], step.src[1] + first),
            dst=step.dst and (step.dst[0], step.dst[1] + first),
            count=min(most, step.count - first),
            depends=depends if first == 0 else None,
            awaited=step.awaited and first + most >= step.count,
        )
