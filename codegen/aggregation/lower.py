"""An aggregation plan as an allreduce of the collective pass, which all its targets, checks and runtimes take.

A chunk is summed up at its global master: members send to the master of their group, these to the global one, and the
total goes back over the same links. A message waits only for what its sender adds to the chunk, so sums of other groups
may arrive at the global master before those of its own members, and totals leave as soon as they are complete.

Where a host has several ranks, each of them stands for the host in its share of the chunks, in turns: the others hand
it what they have, and get the total from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from math import ceil

from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.errors import CheckFailed
from treadle.planner.machine.measured_network import INSIDE_ALPHA_US, INSIDE_BETA_US_PER_MB, nics_ns, uplinks_ns
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, LinkCost, Port
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.collectives import Chunk
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.messages import Message, moves_of_messages, transfers
from treadle.planner.passes.collective.ordering import list_orders
from treadle.planner.passes.collective.problem import Batching, Problem
from treadle.planner.passes.collective.scheduling import longest_path
from treadle.planner.passes.collective.synthesis import Draft
from treadle.planner.passes.collective.topology import Edge, LinkNetwork, LogicalTopology
from treadle.planner.passes.collective.translations import Translations

KIND, INSIDE = "measured", "shared-memory"


def collective_of(decisions: AggregationDecisions) -> CollectiveDecisions:
    """The plan as an allreduce over all ranks, numbered host by host, with one of as many equal parts for each chunk.

    Its times are those of messages over the measured links, the NICs of hosts and the uplinks of near groups.
    """
    problem = decisions.problem
    slots, count = problem.hosts[0].slots, len(decisions.chunks)
    ranks = len(problem.hosts) * slots
    roots = tuple(chunk.top * slots + number % slots for number, chunk in enumerate(decisions.chunks))
    messages = list(_messages(decisions, slots))
    chunk_bytes = -(-problem.size_bytes // count)
    network = _network(decisions, slots, chunk_bytes, {(message.src, message.dst) for message in messages})
    everyone = frozenset(range(ranks))
    asked = Problem(
        collective="allreduce",
        ranks=ranks,
        per_node=slots,
        chunkup=1,
        root=0,
        input_bytes=problem.size_bytes,
        chunk_bytes=chunk_bytes,
        chunks=tuple(Chunk(root, everyone) for root in roots),
        topology=LogicalTopology(ranks, slots, network, network, ()),
        allowed=(),
        ties=(),
        batching=Batching(),
        latency="pipelined",
        roots=roots,
    )
    moves = moves_of_messages(asked, messages)
    times = longest_path(moves, list_orders(moves, ranks, "earliest", "forward"))
    moved = transfers(asked, messages, times, Translations(ranks))
    return decisions_of(Draft(asked, moved, "aggregation", "list scheduling"), problem.connections, None)


def require_right(decisions: CollectiveDecisions, where: str) -> None:
    """Raises CheckFailed, which calls the plan `where`, should the checker of collectives find anything."""
    if findings := check(decisions):
        raise CheckFailed(f"{where}: not generated, its collective failed the check", tuple(findings))


def _messages(decisions: AggregationDecisions, slots: int) -> Iterator[Message]:
    """All messages of each chunk: sums towards its global master, then the total back along the same tree."""
    for number, chunk in enumerate(decisions.chunks):
        own = number % slots
        tree = [(chunk.top * slots + own, local * slots + own) for local in chunk.local if local != chunk.top]
        for group, local in zip(decisions.groups, chunk.local, strict=True):
            tree += [(local * slots + own, member * slots + own) for member in group if member != local]
        for host in range(len(decisions.problem.hosts)):
            tree += [(host * slots + own, host * slots + other) for other in range(slots) if other != own]
        yield from (Message((number,), child, parent, True) for parent, child in reversed(tree))
        yield from (Message((number,), parent, child) for parent, child in tree)


def _network(decisions: AggregationDecisions, slots: int, chunk_bytes: int, used: set[Edge]) -> LinkNetwork:
    """The used links, each host's NIC and the uplinks of near groups in both directions, with costs of one chunk. What
    lets no link wait for another is no port."""
    problem = decisions.problem

    def chunk_ns(ns_per_MiB: Fraction | int) -> int:
        return max(1, ceil(Fraction(ns_per_MiB) * chunk_bytes / MEBIBYTE))

    nics = [chunk_ns(ns) for ns in nics_ns(problem.ns_per_MiB)]
    uplinks = [chunk_ns(ns) for ns in uplinks_ns(problem.ns_per_MiB, decisions.near)]
    home = {host: number for number, group in enumerate(decisions.near) for host in group}
    links: dict[Edge, LinkCost] = {}
    through: dict[tuple[str, int], list[Edge]] = defaultdict(list)
    for src, dst in sorted(used):
        here, there = src // slots, dst // slots
        if here == there:
            alpha = ceil(INSIDE_ALPHA_US * 1000)
            links[src, dst] = LinkCost(src, dst, INSIDE, alpha, chunk_ns(ceil(INSIDE_BETA_US_PER_MB * 1000)))
            continue
        beta = chunk_ns(problem.ns_per_MiB[here][there])
        through["nic {} out", here].append((src, dst))
        through["nic {} in", there].append((src, dst))
        if home[here] != home[there]:
            beta = max(beta, uplinks[home[here]], uplinks[home[there]])
            through["uplink {} out", home[here]].append((src, dst))
            through["uplink {} in", home[there]].append((src, dst))
        links[src, dst] = LinkCost(src, dst, KIND, problem.latency_ns[here][there], beta)
    ports = (
        Port(name=name.format(place), links=tuple(edges), beta_ns=(nics if name.startswith("nic") else uplinks)[place])
        for (name, place), edges in sorted(through.items())
        if len(edges) > 1
    )
    return LinkNetwork(links, tuple(ports))
