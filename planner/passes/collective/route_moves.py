"""Routes as moves: out-trees as they are, and in-trees for reductions (TACCL, section 5.6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.scheduling import Move, Place, Resource
from treadle.planner.passes.collective.topology import Edge

Trees = tuple[tuple[Edge, ...], ...]


def moves_of(problem: Problem, trees: Trees, spread: Trees | None = None) -> tuple[Move, ...]:
    """All moves of the collective, dependences included. An allreduce runs `trees` backwards, then `spread` forwards
    (default: the same)."""
    if problem.half == "forward":
        return forward_moves(problem, trees)
    reduced = inverted_moves(problem, trees)
    if problem.half == "inverted":
        return reduced
    return concatenated(problem, reduced, forward_moves(problem, trees if spread is None else spread))


def forward_moves(problem: Problem, trees: Trees) -> tuple[Move, ...]:
    """A rank sends a chunk on after it arrived."""
    keys = [(chunk, src, dst) for chunk, edges in enumerate(trees) for src, dst in edges]
    arrival = {(chunk, dst): index for index, (chunk, _, dst) in enumerate(keys)}
    ports = _ports(problem)
    return tuple(
        _move(problem, ports, key, [arrival[key[0], key[1]]] if (key[0], key[1]) in arrival else []) for key in keys
    )


def inverted_moves(problem: Problem, trees: Trees) -> tuple[Move, ...]:
    """Every route backwards: a rank sends its partial sum once, after all contributions to it arrived.

    Contributions to one chunk at one rank take turns, which is one more resource.
    """
    keys = [(chunk, dst, src) for chunk, edges in enumerate(trees) for src, dst in edges]
    arrivals: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, (chunk, _, dst) in enumerate(keys):
        arrivals[chunk, dst].append(index)
    ports = _ports(problem)
    moves = []
    for chunk, src, dst in keys:
        move = _move(problem, ports, (chunk, src, dst), arrivals[chunk, src], reduce=True)
        moves.append(replace(move, uses=(*move.uses, ("sum", chunk, dst))))
    return tuple(moves)


def concatenated(problem: Problem, first: tuple[Move, ...], then: tuple[Move, ...]) -> tuple[Move, ...]:
    """`first`, and `then` with its dependences moved along; a chunk leaves its owner once it is fully reduced there."""
    complete: dict[int, list[int]] = defaultdict(list)
    for index, move in enumerate(first):
        if move.dst == problem.chunks[move.chunk].owner:
            complete[move.chunk].append(index)
    shifted = []
    for move in then:
        if move.src == problem.chunks[move.chunk].owner:
            shifted.append(replace(move, after=tuple(complete[move.chunk])))
        else:
            shifted.append(replace(move, after=tuple(index + len(first) for index in move.after)))
    return (*first, *shifted)


def _ports(problem: Problem) -> dict[Edge, list[Resource]]:
    ports: dict[Edge, list[Resource]] = defaultdict(list)
    for number, port in enumerate(problem.ports):
        for edge in port.links:
            ports[edge].append(("port", number, 0))
    return ports


def _own(problem: Problem, uses: Iterable[Resource]) -> Iterator[tuple[Resource, int]]:
    """The ports with a beta of their own, and that beta."""
    for resource in uses:
        beta_ns = problem.ports[resource[1]].beta_ns if resource[0] == "port" else None
        if beta_ns is not None:
            yield resource, beta_ns


def _move(
    problem: Problem,
    ports: dict[Edge, list[Resource]],
    key: tuple[int, int, int],
    after: Iterable[int],
    reduce: bool = False,
) -> Move:
    chunk, src, dst = key
    link = problem.links[src, dst]
    uses: tuple[Resource, ...] = (("link", src, dst), *ports[src, dst])
    pipelined = problem.latency == "pipelined"
    move = Move(chunk, src, dst, link.alpha_ns, link.beta_ns, reduce, tuple(after), uses, pipelined=pipelined)
    own = tuple(_own(problem, uses))
    return replace(move, source=_source(problem, move), target=_target(problem, move), own=own)


def _source(problem: Problem, move: Move) -> Place | None:
    """A rank's own chunks that it also keeps are copied to its output first, and sent from there."""
    if move.reduce and not move.after:
        return "input", move.chunk
    if move.reduce and problem.collective != "allreduce":
        return None
    kept = problem.output_index(move.src, move.chunk)
    if kept is not None:
        return "output", kept
    given = problem.input_index(move.src, move.chunk)
    return None if given is None else ("input", given)


def _target(problem: Problem, move: Move) -> Place:
    kept = problem.output_index(move.dst, move.chunk)
    return ("scratch", move.chunk) if kept is None else ("output", kept)
