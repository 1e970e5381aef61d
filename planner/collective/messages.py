"""Messages in causal order, and when each leaves: how the methods that choose routes by themselves get their times.

A message leaves its source after every earlier message of the list that brings one of its chunks there, its partial
sums included. Messages of one link or port take turns, and so do the sums of one chunk at one rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from planner.collective.algorithm import Transfer
from planner.collective.ordering import best_ordering
from planner.collective.problem import Problem
from planner.collective.scheduling import Move, Resource, Schedule
from planner.collective.topology import Edge

MAX_REORDERED = 30_000
"""Messages among which better orders are searched; longer lists are timed in the order given."""


class Message(NamedTuple):
    """`chunks` travel together from `src` to `dst`; with `reduce` the receiver adds them to what it holds."""

    chunks: tuple[int, ...]
    src: int
    dst: int
    reduce: bool = False


def schedule(problem: Problem, messages: Sequence[Message]) -> tuple[Transfer, ...]:
    """The messages as timed transfers, by send time.

    Every message starts as soon as its data and its resources are free, in the order of the list, or in the best order
    of the list scheduler (TACCL, section 5.5.2) where the list is short enough to search and that ends sooner.
    """
    moves = moves_of_messages(problem, messages)
    best = in_order(moves)
    if len(moves) <= MAX_REORDERED:
        other = best_ordering(moves, problem.ranks).schedule
        best = min((best, other), key=lambda found: found.makespan)
    return _transfers(messages, best)


def moves_of_messages(problem: Problem, messages: Sequence[Message]) -> tuple[Move, ...]:
    """Every message as one move, with what it waits for and what it occupies."""
    ports: dict[Edge, list[Resource]] = defaultdict(list)
    for number, port in enumerate(problem.ports):
        for edge in port.links:
            ports[edge].append(("port", number, 0))
    pipelined = problem.latency == "pipelined"
    brought: dict[tuple[int, int], list[int]] = defaultdict(list)
    moves = []
    for index, (chunks, src, dst, reduce) in enumerate(messages):
        link = problem.links[src, dst]
        after = sorted({earlier for chunk in chunks for earlier in brought.get((chunk, src), ())})
        sums: list[Resource] = [("sum", chunk, dst) for chunk in chunks] if reduce else []
        uses = (("link", src, dst), *ports[src, dst], *sums)
        beta = link.beta_ns * len(chunks)
        moves.append(Move(chunks[0], src, dst, link.alpha_ns, beta, reduce, tuple(after), uses, pipelined=pipelined))
        for chunk in chunks:
            brought[chunk, dst].append(index)
    return tuple(moves)


def in_order(moves: Sequence[Move]) -> Schedule:
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
    return Schedule(tuple(sends), tuple(arrivals), tuple(range(len(moves))))


def _transfers(messages: Sequence[Message], times: Schedule) -> tuple[Transfer, ...]:
    order = sorted(
        range(len(messages)), key=lambda i: (times.send[i], messages[i].src, messages[i].dst, messages[i].chunks)
    )
    sent: dict[Edge, int] = defaultdict(int)
    found = []
    for index in order:
        message = messages[index]
        edge = (message.src, message.dst)
        number, sent[edge] = sent[edge], sent[edge] + 1
        for chunk in message.chunks:
            found.append(Transfer(chunk, *edge, times.send[index], times.arrive[index], number, message.reduce))
    return tuple(found)
