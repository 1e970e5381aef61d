"""What the steps of an option carry and take: payloads with their pieces, bytes, time on a resource.

A rank holds `elements` of a tensor, as they are or as a payload. A payload is `parts` payloads of a shard each, and
there are `pieces` of it for the same elements until a decompress adds them up: skipping that multiplies bytes, which a
model without pieces would miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import NamedTuple

from treadle.planner.documents.compression_costs import CompressorCost
from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import compressor, keeps_residual
from treadle.planner.passes.compression.decisions import GradientGroup
from treadle.planner.passes.compression.problem import DTYPE_BYTES, CompressionProblem

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


@dataclass
class _State:
    """What an active rank holds."""

    elements: int
    active: int
    packed: bool = False
    pieces: int = 1
    parts: int = 1
    shard: int = 0


def works(
    problem: CompressionProblem, name: str | None, steps: Sequence[str], elements: int, gradients: int = 1
) -> tuple[StepWork, ...]:
    """The work of each step of an option on a group of `gradients` with `elements` in all.

    Resources are `device`, `host` (the caller numbers its workers), `intra` and `inter`; a collective of all ranks
    holds both links where there are both. Raises InputError for steps that are no option, and for a compressor that the
    problem does not have at that place.
    """
    costs: dict[str, CompressorCost] = {cost.place: cost for cost in problem.compressors if cost.name == name}
    state = _State(elements, problem.devices)
    opened: dict[str, tuple[str, int]] = {}
    found: list[StepWork] = []
    if gradients > 1 and problem.pack is not None and keeps_residual(name):
        found.append(StepWork(None, "pack", ("device",), problem.pack.at(elements)))
    for number, step in enumerate(steps):
        word, _, where = step.partition("@")
        if word in ("compress", "decompress"):
            cost = _cost(costs, name, where)
            if state.packed == (word == "compress"):
                raise InputError(f"found {step} of {'a payload' if state.packed else 'no payload'}")
            if word == "compress":
                state.parts = _parts(problem, steps[number + 1 :])
                state.shard = -(-state.elements // state.parts)
                state.packed, state.pieces = True, 1
                found.append(
                    StepWork(number, word, (where,), cost.encode.at(state.elements), 0, state.elements, 1, state.parts)
                )
            else:
                ns = cost.decode_ns(state.elements, state.pieces)
                found.append(StepWork(number, word, (where,), ns, 0, state.elements, state.pieces, state.parts))
                state.packed, state.pieces, state.parts = False, 1, 1
            continue
        ranks = members(problem, where)
        held = DTYPE_BYTES * state.elements
        if state.packed:
            held = payload_bytes(costs, name, state.shard) * state.parts * state.pieces
        second = word in ("allgather", "broadcast") and where in opened
        messages = _messages(costs, name) if state.packed and word == "allreduce" else 1
        ns, sent = _routine(problem, word, where, ranks, held // messages, state.active)
        if problem.issue is not None and (issue := problem.issue.at(sent)):
            found.append(StepWork(None, "issue", ("device",), messages * issue))
        found.append(StepWork(number, word, links(problem, where), messages * ns, messages * sent))
        if word in FIRST:
            opened[where] = (word, state.elements)
            if word in DIVIDING:
                state.elements = -(-state.elements // ranks)
            elif where == "intra":
                state.active = 1
            if state.packed:
                state.pieces *= ranks
                if word in DIVIDING:
                    state.parts = max(1, state.parts // ranks)
        elif second:
            first, before = opened.pop(where)
            if first in DIVIDING:
                if state.packed:
                    state.parts *= ranks
                state.elements = before
            elif where == "intra":
                state.active = problem.devices
        elif word == "allgather":
            state.pieces *= ranks
    return tuple(found)


def works_of(problem: CompressionProblem, group: GradientGroup) -> tuple[StepWork, ...]:
    """The work of the steps of a group."""
    elements, gradients = problem.elements(group.first, group.last), group.last - group.first + 1
    return works(problem, group.compressor, group.steps, elements, gradients)


def members(problem: CompressionProblem, scope: str) -> int:
    """How many ranks take part."""
    return {"flat": problem.ranks, "intra": problem.devices, "inter": problem.machines}[scope]


def links(problem: CompressionProblem, scope: str) -> tuple[str, ...]:
    """What a collective of that scope holds."""
    if scope != "flat":
        return (scope,)
    return tuple(name for name, ranks in (("intra", problem.devices), ("inter", problem.machines)) if ranks > 1) or (
        "intra",
    )


def payload_bytes(costs: dict[str, CompressorCost], name: str | None, elements: int) -> int:
    """Bytes of the payload of one shard."""
    assert name is not None
    wire = next(iter(costs.values())).wire
    return compressor(name).wire_bytes(elements) if wire is None else wire.at(elements)


def _messages(costs: dict[str, CompressorCost], name: str | None) -> int:
    """Collectives that an allreduce of payloads takes."""
    known = name is not None and next(iter(costs.values())).wire is None
    return compressor(name).algorithm.messages if name is not None and known else 1


def _cost(costs: dict[str, CompressorCost], name: str | None, place: str) -> CompressorCost:
    if place not in costs:
        raise InputError(f"found {name or 'no compressor'} on the {place}, expected one that the problem has there")
    return costs[place]


def _parts(problem: CompressionProblem, after: Sequence[str]) -> int:
    """Into how many shards a tensor is compressed: those that part before the next decompress."""
    parts = 1
    for step in after:
        word, _, where = step.partition("@")
        if word == "decompress":
            break
        if word in DIVIDING:
            parts *= members(problem, where)
    return parts


def moved_bytes(word: str, ranks: int, held: int) -> int:
    """Bytes that pass the busiest link, of a collective to which each rank brings `held` bytes."""
    match word:
        case "allreduce" | "planned":
            return 2 * (ranks - 1) * held // ranks
        case "reduce-scatter" | "alltoall":
            return (ranks - 1) * held // ranks
        case "allgather" | "gather":
            return (ranks - 1) * held
        case _:
            return held if ranks > 1 else 0


def sent_bytes(word: str, ranks: int, held: int) -> int:
    """Bytes that the busiest rank sends: of a gather only its own."""
    return min(held, (ranks - 1) * held) if word == "gather" else moved_bytes(word, ranks, held)


def _routine(problem: CompressionProblem, word: str, scope: str, ranks: int, held: int, active: int) -> tuple[int, int]:
    """ns and the bytes that the busiest rank sends, of a collective to which each rank brings `held` bytes."""
    moved = moved_bytes(word, ranks, held)
    sent = sent_bytes(word, ranks, held)
    if word == "planned":
        if problem.planned is None:
            raise InputError("found planned@flat, expected a problem with a planned allreduce")
        return problem.planned.at(held), sent
    if ranks == 1 or not held:
        return 0, 0
    every = active == problem.devices or scope == "intra"
    for cost in problem.routines:
        if every and (cost.routine, cost.scope, cost.ranks) == (word, scope, ranks):
            return cost.curve.at(held), sent
    tree = ceil(log2(ranks))
    hops = {"allreduce": 2 * (ranks - 1), "reduce": tree, "broadcast": tree, "gather": tree}.get(word, ranks - 1)
    if scope == "flat":
        used = [link for link in (problem.intra, problem.inter) if link is not None]
        alpha = max(link.alpha_us for link in used)
        if word == "alltoall" and problem.machines > 1 and problem.devices > 1:
            assert problem.intra is not None
            assert problem.inter is not None
            between = problem.devices * held * (problem.machines - 1) // problem.machines
            wire = max(between * problem.inter.beta_us_per_MB, moved * problem.intra.beta_us_per_MB)
        else:
            wire = moved * max(link.beta_us_per_MB for link in used)
        return _ns(hops * alpha, wire), sent
    link = problem.intra if scope == "intra" else problem.inter
    assert link is not None
    shared = active if scope == "inter" else 1
    return _ns(hops * link.alpha_us, moved * shared * link.beta_us_per_MB), sent


def _ns(alpha_us: float, wire: float) -> int:
    """From us, and bytes times us per MiB."""
    return int(1000 * alpha_us + 1000 * wire / MB + 0.5)
