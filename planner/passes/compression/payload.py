"""What the steps of an option carry and take: payloads with their pieces, bytes, time on a resource.

A rank holds `elements` of a tensor, as they are or as a payload. A payload is `parts` payloads of a shard each, and
there are `pieces` of it for the same elements until a decompress adds them up: skipping that multiplies bytes, which a
model without pieces would miss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from treadle.planner.documents.compression_costs import CompressorCost
from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import compressor, keeps_residual
from treadle.planner.passes.compression.decisions import GradientGroup
from treadle.planner.passes.compression.problem import DTYPE_BYTES, CompressionProblem
from treadle.planner.passes.compression.sizes import Size, decode_ns, each, larger, on_curve, whole

MB = 1 << 20
FIRST = ("reduce-scatter", "alltoall", "reduce", "gather")
DIVIDING = ("reduce-scatter", "alltoall")


class StepWork(NamedTuple):
    """One step of a group: what it holds, ns, and bytes that a rank sends. `step` is None for what is no step of
    the option, by `word`: the copy into one buffer (pack), and what a collective takes of the device before it is sent
    (issue). `elements` and `pieces` are what an encoding or
    decoding works on, `parts` of how many payloads."""

    step: int | None
    word: str
    resources: tuple[str, ...]
    ns: int
    sent_bytes: int = 0
    elements: int = 0
    pieces: int = 1
    parts: int = 1


class _Shape(NamedTuple):
    """A step whatever the number of elements: a rank holds one part of `divisor` of them, in payloads of one part of
    `shard` each; of each node `active` ranks take part."""

    step: int
    word: str
    where: str
    ranks: int
    divisor: int
    packed: bool
    shard: int
    pieces: int
    parts: int
    active: int


class Prices:
    """What options take on a group with `elements` in all; steps that are alike are priced once."""

    def __init__(self, problem: CompressionProblem, elements: Size) -> None:
        self.problem, self.elements = problem, elements
        self._known: dict[tuple[str | None, _Shape], tuple[StepWork, ...]] = {}

    def works(self, name: str | None, steps: Sequence[str], gradients: int = 1) -> tuple[StepWork, ...]:
        """The work of each step on a group of `gradients`.

        Resources are `device`, `host` (the caller numbers its workers), `intra` and `inter`; a collective of all ranks
        holds both links where there are both. Raises InputError for steps that are no option, and for a compressor that
        the problem does not have at that place.
        """
        problem, known = self.problem, self._known
        found: list[StepWork] = []
        if gradients > 1 and problem.pack is not None and keeps_residual(name):
            found.append(StepWork(None, "pack", ("device",), on_curve(problem.pack, self.elements)))
        for shape in _shapes(problem.machines, problem.devices, tuple(steps)):
            key = name, shape
            if key not in known:
                known[key] = tuple(self._priced(name, shape))
            found += known[key]
        return tuple(found)

    def _priced(self, name: str | None, shape: _Shape) -> Iterator[StepWork]:
        number, word, where, ranks, divisor, packed, shard, pieces, parts, active = shape
        problem = self.problem
        costs: dict[str, CompressorCost] = {cost.place: cost for cost in problem.compressors if cost.name == name}
        held = -(-self.elements // divisor)
        if word in ("compress", "decompress"):
            cost = _cost(costs, name, where)
            ns = on_curve(cost.encode, held) if word == "compress" else decode_ns(cost, held, pieces)
            yield StepWork(number, word, (where,), ns, 0, held, pieces, parts)
            return
        held_bytes = DTYPE_BYTES * held
        if packed:
            held_bytes = payload_bytes(costs, name, -(-self.elements // shard)) * parts * pieces
        messages = _messages(costs, name) if packed and word == "allreduce" else 1
        ns, sent = _routine(problem, word, where, ranks, held_bytes // messages, active)
        issue = 0 * sent if problem.issue is None else on_curve(problem.issue, sent)
        if np.any(issue):
            yield StepWork(None, "issue", ("device",), messages * issue)
        yield StepWork(number, word, links(problem, where), messages * ns, messages * sent)


def works(
    problem: CompressionProblem, name: str | None, steps: Sequence[str], elements: Size, gradients: int = 1
) -> tuple[StepWork, ...]:
    """The work of each step of one option, as Prices.works has it."""
    return Prices(problem, elements).works(name, steps, gradients)


@cache
def _shapes(machines: int, devices: int, steps: tuple[str, ...]) -> tuple[_Shape, ...]:
    """The steps of an option. Raises InputError for those that are none."""
    members = {"flat": machines * devices, "intra": devices, "inter": machines}
    divisor, active, packed, pieces, parts, shard = 1, devices, False, 1, 1, 1
    opened: dict[str, tuple[str, int]] = {}
    found: list[_Shape] = []
    for number, step in enumerate(steps):
        word, _, where = step.partition("@")
        ranks = members.get(where, 1)
        if word in ("compress", "decompress"):
            if packed == (word == "compress"):
                raise InputError(f"found {step} of {'a payload' if packed else 'no payload'}")
            if word == "compress":
                parts, pieces = _parts(members, steps[number + 1 :]), 1
                shard = divisor * parts
        found.append(_Shape(number, word, where, ranks, divisor, packed, shard, pieces, parts, active))
        if word in ("compress", "decompress"):
            packed = word == "compress"
            pieces, parts = 1, parts if packed else 1
        elif word in FIRST:
            opened[where] = word, divisor
            if word in DIVIDING:
                divisor *= ranks
            elif where == "intra":
                active = 1
            if packed:
                pieces *= ranks
                if word in DIVIDING:
                    parts = max(1, parts // ranks)
        elif word in ("allgather", "broadcast") and where in opened:
            first, before = opened.pop(where)
            if first in DIVIDING:
                if packed:
                    parts *= ranks
                divisor = before
            elif where == "intra":
                active = devices
        elif word == "allgather":
            pieces *= ranks
    return tuple(found)


def works_of(problem: CompressionProblem, group: GradientGroup) -> tuple[StepWork, ...]:
    """The work of the steps of a group."""
    elements, gradients = problem.elements(group.first, group.last), group.last - group.first + 1
    return works(problem, group.compressor, group.steps, elements, gradients)


def links(problem: CompressionProblem, scope: str) -> tuple[str, ...]:
    """What a collective of that scope holds."""
    if scope != "flat":
        return (scope,)
    return tuple(name for name, ranks in (("intra", problem.devices), ("inter", problem.machines)) if ranks > 1) or (
        "intra",
    )


def payload_bytes(costs: dict[str, CompressorCost], name: str | None, elements: Size) -> Size:
    """Bytes of the payload of one shard."""
    assert name is not None
    wire = next(iter(costs.values())).wire
    return each(compressor(name).wire_bytes, elements) if wire is None else on_curve(wire, elements)


def _messages(costs: dict[str, CompressorCost], name: str | None) -> int:
    """Collectives that an allreduce of payloads takes."""
    known = name is not None and next(iter(costs.values())).wire is None
    return compressor(name).algorithm.messages if name is not None and known else 1


def _cost(costs: dict[str, CompressorCost], name: str | None, place: str) -> CompressorCost:
    if place not in costs:
        raise InputError(f"found {name or 'no compressor'} on the {place}, expected one that the problem has there")
    return costs[place]


def _parts(members: Mapping[str, int], after: Sequence[str]) -> int:
    """Into how many shards a tensor is compressed: those that part before the next decompress."""
    parts = 1
    for step in after:
        word, _, where = step.partition("@")
        if word == "decompress":
            break
        if word in DIVIDING:
            parts *= members[where]
    return parts


def moved_bytes(word: str, ranks: int, held: Size) -> Size:
    """Bytes that pass the busiest link, of a collective to which each rank brings `held` bytes."""
    match word:
        case "allreduce" | "planned":
            return 2 * (ranks - 1) * held // ranks
        case "reduce-scatter" | "alltoall":
            return (ranks - 1) * held // ranks
        case "allgather" | "gather":
            return (ranks - 1) * held
        case _:
            return held if ranks > 1 else 0 * held


def sent_bytes(word: str, ranks: int, held: Size) -> Size:
    """Bytes that the busiest rank sends: of a gather only its own."""
    return held if word == "gather" and ranks > 1 else moved_bytes(word, ranks, held)


def _routine(
    problem: CompressionProblem, word: str, scope: str, ranks: int, held: Size, active: int
) -> tuple[Size, Size]:
    """ns and the bytes that the busiest rank sends, of a collective to which each rank brings `held` bytes."""
    moved, sent = moved_bytes(word, ranks, held), sent_bytes(word, ranks, held)
    if word == "planned":
        if problem.planned is None:
            raise InputError("found planned@flat, expected a problem with a planned allreduce")
        return on_curve(problem.planned, held), sent
    if ranks == 1:
        return 0 * held, 0 * held
    every = active == problem.devices or scope == "intra"
    for cost in problem.routines:
        if every and (cost.routine, cost.scope, cost.ranks) == (word, scope, ranks):
            return on_curve(cost.curve, held), sent
    hops = _hops(word, ranks)
    if scope == "flat":
        used = [link for link in (problem.intra, problem.inter) if link is not None]
        alpha = max(link.alpha_us for link in used)
        if word == "alltoall" and problem.machines > 1 and problem.devices > 1:
            assert problem.intra is not None
            assert problem.inter is not None
            between = problem.devices * held * (problem.machines - 1) // problem.machines
            wire = larger(between * problem.inter.beta_us_per_MB, moved * problem.intra.beta_us_per_MB)
        else:
            wire = moved * max(link.beta_us_per_MB for link in used)
        return (held > 0) * _ns(hops * alpha, wire), sent
    link = problem.intra if scope == "intra" else problem.inter
    assert link is not None
    shared = active if scope == "inter" else 1
    return (held > 0) * _ns(hops * link.alpha_us, moved * shared * link.beta_us_per_MB), sent


def _hops(word: str, ranks: int) -> int:
    """Steps of a routine that each take the alpha of its link."""
    match word:
        case "allreduce":
            return 2 * (ranks - 1)
        case "reduce" | "broadcast" | "gather":
            return ceil(log2(ranks))
        case _:
            return ranks - 1


def _ns(alpha_us: float, wire: Size) -> Size:
    """From us, and bytes times us per MiB."""
    return whole(1000 * alpha_us + 1000 * wire / MB + 0.5)
