"""A draft as a plan states it, with instances and protocol chosen by size where they are not given."""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

from treadle.planner.documents.collective import Protocol
from treadle.planner.documents.hardware import TEARING
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.collectives import ROOTED
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.synthesis import Draft


def decisions_of(
    draft: Draft, instances: int | None, protocol: Protocol | Literal["auto"] | None
) -> CollectiveDecisions:
    """The draft as a plan states it; instances and protocol by size where they are not given. Raises InputError for a
    protocol that its links do not carry."""
    problem = draft.problem
    if draft.switched:
        instances, protocol = 1, "Simple"  # neither is of a program: members load and store through the switch
    kinds = {link.kind for link in problem.links.values()}
    if protocol == "LL128" and (torn := kinds & TEARING):
        raise InputError(
            f"found LL128, expected Simple or LL: over {min(torn)} links its 128-byte stores may arrive in parts",
            where="--protocol",
        )
    return CollectiveDecisions(
        collective=problem.collective,
        ranks=problem.ranks,
        chunkup=problem.chunkup,
        chunk_bytes=problem.chunk_bytes,
        input_bytes=problem.input_bytes,
        root=problem.root if problem.collective in ROOTED else None,
        roots=problem.roots,
        demands=problem.demands,
        latency=problem.latency,
        links=tuple(problem.links.values()),
        ports=problem.ports,
        transfers=draft.transfers,
        switches=problem.switches if draft.switched else (),
        switched=draft.switched,
        makespan_ns=draft.makespan_ns,
        routing_ns=draft.routing_ns,
        ordering_ns=draft.ordering_ns,
        instances=instances or instances_for(problem),
        protocol=protocol_for(problem.input_bytes, kinds) if protocol is None or protocol == "auto" else protocol,
    )


def instances_for(problem: Problem) -> int:
    """1 for small inputs or where many links are used, 8 where few links must carry much."""
    policies = {hyperedge.policy for hyperedge in problem.topology.hyperedges}
    if "uc-max" in policies:
        return 1
    return 8 if "uc-min" in policies or problem.input_bytes > MEBIBYTE else 1


def protocol_for(input_bytes: int, kinds: Set[str] = frozenset()) -> Protocol:
    """LL up to 64 KB, LL128 up to 1 MB where links of these kinds carry it, Simple above."""
    if input_bytes <= 2**16:
        return "LL"
    return "LL128" if input_bytes <= MEBIBYTE and not kinds & TEARING else "Simple"
