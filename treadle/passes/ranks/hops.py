"""Any collective plan as hops between places of hosts, so that it can be laid on any hosts."""

from __future__ import annotations

from typing import Any

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.passes import as_pass, name_of
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.ranks.problem import PlanHop


def collective_plan(plan: Plan[Any], where: str) -> CollectiveDecisions:
    """The collective that a plan makes. Raises InputError, which calls it `where`, for one that makes none."""
    if (collective := as_pass(plan, CollectiveDecisions)) is not None:
        return collective.decisions
    if (aggregation := as_pass(plan, AggregationDecisions)) is not None:
        from treadle.codegen.aggregation.lower import collective_of

        return collective_of(aggregation.decisions)
    raise InputError(f"found a {name_of(plan.decisions)} plan, expected one of a collective", where=where)


def hops_of(decisions: CollectiveDecisions, hosts: int, slots: int, where: str) -> tuple[PlanHop, ...]:
    """The messages of a plan in causal order, between places of `hosts` hosts that have `slots` ranks each.

    A message leaves when all that its chunks need has arrived, and what went before it over its link and the ports of
    its two hosts: a port carries as many messages at once as fit into the time of one. Ports that several hosts share
    are left out, since other hosts may not share them. Raises InputError for plans of another number of
    ranks, of which an order would split a host, and for those that run inside switches.
    """
    from treadle.codegen.collective.placement import LEAVES, batches_of, events_of

    if decisions.ranks != hosts * slots:
        raise InputError(
            f"found a plan of {many(decisions.ranks, 'rank')}, expected {hosts * slots}, {slots} on each of "
            f"{many(hosts, 'host')}; an order of its ranks would split a host",
            where=where,
        )
    if decisions.switched:
        raise InputError("found a plan whose sums are made in switches, expected messages between ranks", where=where)
    lanes = _lanes(decisions, slots)
    batches = batches_of(decisions)
    arrived: dict[tuple[int, int], list[int]] = {}
    taken: dict[int, list[int]] = {}
    number: dict[int, int] = {}
    hops: list[PlanHop] = []
    for event in events_of(batches):
        batch = batches[event.number]
        if event.kind != LEAVES:
            for move in batch.moves:
                arrived.setdefault((move.dst, move.chunk), []).append(number[event.number])
            continue
        number[event.number] = len(hops)
        after = {before for move in batch.moves for before in arrived.get((move.src, move.chunk), ())}
        for lane, width in lanes[batch.src, batch.dst]:
            before = taken.setdefault(lane, [])
            after |= {before[-width]} if len(before) >= width else set()
            before.append(len(hops))
        size = len(batch.moves) * decisions.chunk_bytes
        hops.append(PlanHop(batch.src // slots, batch.dst // slots, size, tuple(sorted(after))))
    return tuple(hops)


def _lanes(decisions: CollectiveDecisions, slots: int) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """What the messages of each link pass: itself, and the ports that belong to one host, by numbers, with how many
    messages of the link each carries at once."""
    found = {(link.src, link.dst): [(place, 1)] for place, link in enumerate(decisions.links)}
    times = {(link.src, link.dst): link.alpha_ns + link.beta_ns for link in decisions.links}
    for place, port in enumerate(decisions.ports, len(decisions.links)):
        if any(len({rank // slots for rank in ends}) == 1 for ends in zip(*port.links, strict=True)):
            for link in port.links:
                width = 1 if port.beta_ns is None else max(1, times[link] // max(1, port.beta_ns))
                found[link].append((place, width))
    return found
