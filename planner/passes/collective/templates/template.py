"""What the templates share: hops of chunks along out-trees become messages, and the best of several variants a draft.

A template says how each chunk spreads from its owner to its targets. A reducing collective runs that backwards: the
template spreads over the links turned around, and every hop is then turned and adds up; an allreduce does both, one
after the other for each chunk. So each template is written once, for the spreading direction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from treadle.planner.documents.collective import max_chunkup
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import LinkCost, Transfer
from treadle.planner.passes.collective.messages import (
    MAX_REORDERED,
    Message,
    in_order,
    moves_of_messages,
    schedule,
    timed,
)
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.synthesis import Draft
from treadle.planner.passes.collective.topology import Edge

MAX_MESSAGES = 300_000
"""Messages beyond which a template gives up: they are timed one by one."""
FINALISTS, FEW_MESSAGES = 3, 3_000
"""How many variants get the best order of their messages before one is chosen, and up to how many messages of each."""
LEAST_PIECE = 512
"""Bytes below which a buffer is not cut into more pieces."""


class RoundHop(NamedTuple):
    """In round `round` of its template, `chunk` goes from `src` to `dst`."""

    round: int
    chunk: int
    src: int
    dst: int


Spread = Callable[[bool], Iterable[RoundHop]]
"""How every chunk spreads from its owner; given True, over the links turned around."""


@dataclass(frozen=True)
class Variant:
    """A template with its choices made, which `words` name."""

    words: str
    problem: Problem
    spread: Spread


def piece_counts(problem: Problem, counts: Iterable[int]) -> list[int]:
    """The `counts` into which every part of `problem`, a problem of one piece, may be cut."""
    most = max(1, min(problem.chunk_bytes // LEAST_PIECE, max_chunkup(problem.collective, problem.ranks)))
    return sorted({min(count, most) for count in counts})


def require(name: str, problem: Problem, collectives: Iterable[str]) -> None:
    """Raises InputError where the template `name` is not defined for the collective."""
    known = sorted(collectives)
    if problem.collective not in known:
        raise InputError(f"found {problem.collective}, the template is for {', '.join(known)}", where=f"method {name}")


def best_draft(name: str, variants: Iterable[Variant]) -> Draft:
    """The variant that ends soonest, its messages in the best order found; the first of equals.

    Raises the InputError of the first variant where none of them fits.
    """

    def option(variant: Variant) -> tuple[str, Problem, Callable[[], list[Message]]]:
        return variant.words, variant.problem, lambda: list(messages_of(name, variant.problem, variant.spread))

    return best_of(name, map(option, variants))


def best_of(name: str, options: Iterable[tuple[str, Problem, Callable[[], list[Message]]]]) -> Draft:
    """The option (words, problem, its messages) that ends soonest, as `best_draft`."""
    found: list[tuple[int, int, int, str, Problem, list[Message]]] = []
    refused: list[InputError] = []
    for number, (words, problem, make) in enumerate(options):
        try:
            messages = make()
        except InputError as error:
            refused.append(error)
            continue
        time = in_order(moves_of_messages(problem, messages)).makespan
        found.append((time, len(messages), number, words, problem, messages))
    if not found:
        raise refused[0] if refused else InputError("no variant fits", where=f"method {name}")
    found.sort(key=lambda entry: entry[:3])
    finalists = [entry for entry in found[:FINALISTS] if entry is found[0] or entry[1] <= FEW_MESSAGES]
    drafts = [
        Draft(
            problem=problem,
            transfers=timed_best(problem, messages),
            method=", ".join(part for part in (name, words) if part),
            status="template, list scheduling",
        )
        for *_, words, problem, messages in finalists
    ]
    return min(drafts, key=lambda draft: draft.makespan_ns)


def timed_best(problem: Problem, messages: Sequence[Message]) -> tuple[Transfer, ...]:
    """The messages in the best order found, or as they stand where they are too many to reorder."""
    return schedule(problem, messages) if len(messages) <= MAX_REORDERED else timed(problem, messages)


def messages_of(name: str, problem: Problem, spread: Spread) -> Iterator[Message]:
    """The hops as messages in causal order; chunks that make the same hop in one round share messages where the sketch
    allows that. Raises InputError where a hop needs a link that is not there, or there are too many."""
    ordered: list[tuple[int, int, int, int, bool, int]] = []
    size = problem.ranks

    def add(hops: Iterable[RoundHop], turn: bool) -> None:
        listed = list(hops)
        if len(listed) + len(ordered) > MAX_MESSAGES:
            raise InputError(f"would take over {MAX_MESSAGES} messages", where=f"method {name}")
        last = max((hop.round for hop in listed), default=0)
        for round, chunk, src, dst in listed:
            if turn:
                round, src, dst = last - round, dst, src
            elif dst in problem.chunks[chunk].sources:
                continue  # it passes a rank that holds the chunk already
            if (src, dst) not in problem.links:
                raise InputError(f"needs a link {src} -> {dst}, which the sketch does not include",
                                 where=f"method {name}")  # fmt: skip
            ordered.append((round, (dst - src) % size, src, dst, turn, chunk))

    if problem.half != "forward":
        add(spread(True), True)
    first = len(ordered)
    if problem.half != "inverted":
        add(spread(False), False)
    for part in (ordered[:first], ordered[first:]):
        groups: dict[tuple[int, int, int, int, bool], list[int]] = defaultdict(list)
        for *key, chunk in part:
            groups[tuple(key)].append(chunk)  # type: ignore[index]
        for (_, _, src, dst, turn), chunks in sorted(groups.items()):
            yield from (Message(run, src, dst, turn) for run in runs(problem, (src, dst), sorted(chunks)))


def runs(problem: Problem, edge: Edge, chunks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """`chunks` cut into messages as large as the sketch allows on the link."""
    batching = problem.batching
    if edge not in batching.links:
        yield from ((chunk,) for chunk in chunks)
        return
    run: list[int] = []
    for chunk in chunks:
        if run and (len(run) == batching.max_run or (batching.adjacent and chunk != run[-1] + 1)):
            yield tuple(run)
            run = []
        run.append(chunk)
    if run:
        yield tuple(run)


def links_of(problem: Problem, turned: bool) -> dict[Edge, LinkCost]:
    """The links in the direction in which chunks spread."""
    return {(b, a): link for (a, b), link in problem.links.items()} if turned else problem.links


def network_ports(problem: Problem, size: int, turned: bool = False) -> tuple[list[int], list[int]]:
    """By device: the least device with which it shares its port to other nodes, leaving and entering."""
    across = [edge for edge in links_of(problem, turned) if edge[0] < size <= edge[1]]
    back = [edge for edge in links_of(problem, turned) if edge[1] < size <= edge[0]]
    leaving, entering = list(range(size)), list(range(size))
    for port in problem.ports:
        if port.beta_ns is not None:
            continue
        links = {(b, a) if turned else (a, b) for a, b in port.links}
        for edges, end, found in ((across, 0, leaving), (back, 1, entering)):
            group = {edge[end] for edge in edges if edge in links}
            if group and all(edge in links for edge in edges if edge[end] in group):
                for device in group:
                    found[device] = min(group)
    return leaving, entering
