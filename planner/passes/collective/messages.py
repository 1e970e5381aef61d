"""Messages in causal order, and when each leaves: how the methods that choose only routes get their times.

A message leaves its source after every earlier message of the list that brings one of its chunks there, its partial
sums included. Messages of one link or port take turns, and so do the sums of one chunk at one rank. Two ranks may also
exchange their partial sums: both messages leave and arrive together, each with what its source held before. With a
group of translations a message stands for all its images, which leave at the same time: resources and places are then
orbits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from treadle.planner.passes.collective.algorithm import Transfer
from treadle.planner.passes.collective.ordering import best_ordering
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.scheduling import Move, MoveTimes, Resource
from treadle.planner.passes.collective.topology import Edge
from treadle.planner.passes.collective.translations import Ints, Translations

MAX_REORDERED = 30_000
"""Messages among which better orders are searched; longer lists are timed in the order given."""


class Message(NamedTuple):
    """`chunks` travel together from `src` to `dst`; with `reduce` the receiver adds them to what it holds. A `twin` is
    the reverse of the message right before it in an exchange; its link costs the same."""

    chunks: tuple[int, ...]
    src: int
    dst: int
    reduce: bool = False
    twin: bool = False


def schedule(problem: Problem, messages: Sequence[Message], group: Translations | None = None) -> tuple[Transfer, ...]:
    """The messages, and their images under `group`, as timed transfers by send time.

    Every message starts as soon as its data and its resources are free, in the order of the list, or in the best order
    of the list scheduler (TACCL, section 5.5.2) where the list is short enough to search and that ends sooner.
    """
    group = group or Translations(problem.ranks)
    return transfers(problem, messages, times(problem, messages, group), group)


def timed(problem: Problem, messages: Sequence[Message], group: Translations | None = None) -> tuple[Transfer, ...]:
    """Like `schedule`, in the order of the list whatever its length."""
    group = group or Translations(problem.ranks)
    return transfers(problem, messages, in_order(moves_of_messages(problem, messages, group)), group)


def times(problem: Problem, messages: Sequence[Message], group: Translations) -> MoveTimes:
    """When the messages leave and arrive, as `schedule` has it."""
    moves = moves_of_messages(problem, messages, group)
    best = in_order(moves)
    if len(moves) <= MAX_REORDERED:
        other = best_ordering(moves, problem.ranks).schedule
        best = min((best, other), key=lambda found: found.makespan)
    return best


def moves_of_messages(
    problem: Problem, messages: Sequence[Message], group: Translations | None = None
) -> tuple[Move, ...]:
    """Every message as one move, an exchange as one too, with what it waits for and what it occupies; all by orbit,
    named by their member with the representative of the receiving or sending rank."""
    group = group or Translations(problem.ranks)
    home = group.representative
    ports: dict[Edge, list[Resource]] = defaultdict(list)
    own: dict[Edge, list[tuple[Resource, int]]] = defaultdict(list)
    for number, (orbit, beta_ns) in enumerate(_port_orbits(problem, group)):
        for edge in orbit:
            ports[edge].append(("port", number, 0))
            if beta_ns is not None:
                own[edge].append((("port", number, 0), beta_ns))
    pipelined = problem.latency == "pipelined"
    brought: dict[tuple[int, int], list[int]] = {}

    def place(chunk: int, rank: int) -> tuple[int, int]:
        return group.moved_chunk(problem, chunk, lambda other: group.moved(other, rank, back=True)), home[rank]

    moves: list[Move] = []
    for chunks, src, dst, reduce, twin in messages:
        index = len(moves) - twin
        link = problem.links[src, dst]
        here = [place(chunk, src) for chunk in chunks]
        there = [place(chunk, dst) for chunk in chunks]
        after = sorted({earlier for spot in here for earlier in brought.get(spot, ())} - {index})
        sums: list[Resource] = [("sum", *spot) for spot in there] if reduce else []
        edge = home[src], group.moved(dst, src, back=True)
        uses = (("link", *edge), *ports[edge], *sums)
        beta = link.beta_ns * len(chunks)
        held = tuple((port, ns * len(chunks)) for port, ns in own[edge]) if own else ()
        move = Move(chunks[0], src, dst, link.alpha_ns, beta, reduce, tuple(after), uses, None, None, pipelined, held)
        if twin:
            first = moves.pop()
            waits, shared = tuple(sorted({*first.after, *after})), (*first.own, *held)
            move = replace(first, after=waits, uses=(*first.uses, *uses), own=shared)
        moves.append(move)
        for spot in there:
            brought.setdefault(spot, []).append(index)
    return tuple(moves)


def _port_orbits(problem: Problem, group: Translations) -> list[tuple[Sequence[Edge], int | None]]:
    """The links of every port, each by the member of its orbit that leaves a representative, without repetition, and
    the port's own beta."""
    home = group.representative
    if not group.digits:
        return [(port.links, port.beta_ns) for port in problem.ports]
    orbits = {
        tuple(sorted((home[src], group.moved(dst, src, back=True)) for src, dst in port.links)): port.beta_ns
        for port in problem.ports
    }
    return sorted(orbits.items())


def in_order(moves: Sequence[Move]) -> MoveTimes:
    """Earliest times where every resource serves the moves in the order given."""
    free: dict[Resource, int] = defaultdict(int)
    sends: list[int] = []
    arrivals: list[int] = []
    for move in moves:
        start = max((arrivals[earlier] for earlier in move.after), default=0)
        for resource in move.uses:
            start = max(start, free[resource])
        for resource in move.uses:
            free[resource] = start + move.busy(resource)
        sends.append(start)
        arrivals.append(start + move.lat)
    return MoveTimes(tuple(sends), tuple(arrivals), tuple(range(len(moves))))


def transfers(
    problem: Problem, messages: Sequence[Message], schedule: MoveTimes, group: Translations
) -> tuple[Transfer, ...]:
    """One transfer for each chunk of each message and each element of `group`, by (send, src, dst, batch, chunk);
    batches of a link are numbered in the order they leave. `schedule` is by move."""
    of = [position - 1 for position in accumulate(not message.twin for message in messages)]
    number = [0] * len(messages)
    sent: dict[Edge, int] = defaultdict(int)
    for index in sorted(range(len(messages)), key=lambda i: (schedule.send[of[i]], i)):
        edge = (group.representative[messages[index].src], group.moved(messages[index].dst, messages[index].src, True))
        number[index] = sent[edge]
        sent[edge] += 1
    rows = [
        (
            chunk,
            message.src,
            message.dst,
            schedule.send[of[index]],
            schedule.arrive[of[index]],
            number[index],
            message.reduce,
        )
        for index, message in enumerate(messages)
        for chunk in message.chunks
    ]
    if not rows:
        return ()
    chunks, srcs, dsts, *rest = np.array(rows, dtype=np.int64).T
    columns: list[Ints] = [
        np.concatenate([group.moved_chunk(problem, chunks, lambda rank, to=to: to[rank]) for to in group.table]),
        group.table[:, srcs].ravel(),
        group.table[:, dsts].ravel(),
        *(np.tile(column, group.order) for column in rest),
    ]
    chunks, srcs, dsts, sends, _, batches, _ = columns
    order = np.lexsort((chunks, batches, dsts, srcs, sends))
    numbers = (_shared(column[order]) for column in columns[:6])
    reduces = [bool(value) for value in columns[6][order]]
    return tuple(map(Transfer, *numbers, reduces))


def _shared(column: Ints) -> list[int]:
    """The column as Python integers, equal ones the same object: long plans hold few different numbers."""
    values, index = np.unique(column, return_inverse=True)
    return list(np.array(values.tolist(), dtype=object)[index])
