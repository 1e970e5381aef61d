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

    A message leaves when all that its chunks need has arrived, and the one before it on its link and on the ports of
    its two ranks: those last in any order of the hosts, unlike links that several hosts share, which are not known.
    Raises InputError for plans of another number of ranks, of which an order would split a host, and for those that run
    inside switches.
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
    ports = _own_ports(decisions)
    batches = batches_of(decisions)
    arrived: dict[tuple[int, int], list[int]] = {}
    last: dict[tuple[int, ...], int] = {}
    number: dict[int, int] = {}
    hops: list[PlanHop] = []
    for event in events_of(batches):
        batch = batches[event.number]
        if event.kind != LEAVES:
            for move in batch.moves:
                arrived.setdefault((move.dst, move.chunk), []).append(number[event.number])
            continue
        number[event.number] = len(hops)
        link = (batch.src, batch.dst)
        taken = [link, *ports.get(link, ())]
        after = {before for move in batch.moves for before in arrived.get((move.src, move.chunk), ())}
        after |= {last[port] for port in taken if port in last}
        last |= dict.fromkeys(taken, len(hops))
        size = len(batch.moves) * decisions.chunk_bytes
        hops.append(PlanHop(batch.src // slots, batch.dst // slots, size, tuple(sorted(after))))
    return tuple(hops)


def _own_ports(decisions: CollectiveDecisions) -> dict[tuple[int, int], list[tuple[int]]]:
    """The ports of each link that belong to one of its ranks, by their numbers."""
    found: dict[tuple[int, int], list[tuple[int]]] = {}
    for place, port in enumerate(decisions.ports):
        ends = zip(*port.links, strict=True) if port.links else ()
        if any(len({*end}) == 1 for end in ends):
            for link in port.links:
                found.setdefault(link, []).append((place,))
    return found
