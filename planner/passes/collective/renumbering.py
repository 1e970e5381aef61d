"""Ranks numbered group by group: methods that need racks and nodes of consecutive ranks plan under such numbers.

Ranks of one rack need not follow each other in a profile. A request with `order` states the same problem with other
numbers, rank `order[i]` being i; a draft of it becomes one of the profile's ranks by mapping every rank and chunk back.
Messages of several chunks that are then not neighbours in memory are sent as several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from treadle.planner.documents.collective import Demand
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.collectives import permuted_chunks
from treadle.planner.passes.collective.groups import group_by_group
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.messages import Message, timed
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.retime import algorithm_of
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates.template import runs, timed_best

Method = Callable[[Request, Effort], Draft]


def in_either_order(method: Method) -> Method:
    """`method` with the ranks as they are numbered, or group by group where that is another order and ends sooner."""

    def synthesize(request: Request, effort: Effort) -> Draft:
        order = group_by_group(request.problem(1).topology)
        if order == tuple(range(len(order))):
            return method(request, effort)
        try:
            by_group = restored(method(grouped(request, order), effort), request, order)
        except InputError:
            return method(request, effort)
        if effort.exhausted():
            return by_group
        try:
            plain = method(request, effort)
        except InputError:
            return by_group
        return min(plain, by_group, key=lambda draft: draft.makespan_ns)

    return synthesize


def grouped(request: Request, order: tuple[int, ...]) -> Request:
    """The same request where rank order[i] is i."""
    place = {rank: number for number, rank in enumerate(order)}
    demands = request.demands and tuple(
        Demand(tuple(place[rank] for rank in demand.sources), tuple(place[rank] for rank in demand.targets))
        for demand in request.demands
    )
    return replace(request, order=order, root=place[request.root], demands=demands)


def restored(draft: Draft, request: Request, order: Sequence[int]) -> Draft:
    """A draft for `request` with `order` as one for `request`."""
    old = draft.problem
    roots = None
    if old.collective == "allreduce":
        roots = [order[chunk.owner] for chunk in old.chunks]
    problem = request.problem(old.chunkup, roots)
    mapped = list(_mapped(algorithm_of(old, draft.transfers).messages, old, problem, order))
    whole = len(mapped) == len({(move.src, move.dst, move.batch) for move in draft.transfers})
    return replace(
        draft,
        problem=problem,
        transfers=(timed if whole else timed_best)(problem, mapped),
        method=f"{draft.method}, ranks group by group",
    )


def _mapped(messages: Sequence[Message], old: Problem, new: Problem, order: Sequence[int]) -> Iterator[Message]:
    """The messages between the ranks of `order`, cut where chunks are no longer neighbours; the two messages of an
    exchange stay side by side."""
    same = old.roots is not None or new.roots is not None or old.demands is not None
    chunks = range(len(old.chunks)) if same else permuted_chunks(old.collective, old.chunkup, order)
    at = 0
    while at < len(messages):
        pair = messages[at : at + 1 + (at + 1 < len(messages) and messages[at + 1].twin)]
        at += len(pair)
        members = sorted(chunks[chunk] for chunk in pair[0].chunks)
        for run in runs(new, (order[pair[0].src], order[pair[0].dst]), members):
            yield from (one._replace(chunks=run, src=order[one.src], dst=order[one.dst]) for one in pair)
