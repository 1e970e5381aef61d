"""Plans whose chunks go straight from rank to rank, which a GPU runtime over symmetric memory executes without slots.

Such a plan sums every chunk at one rank, sends every chunk from one rank to all others, or both, and all ranks do equal
shares. The runtime then needs no messages: each rank reads the buffers of the others. An allreduce it does in one shot,
where every rank reads and sums all buffers, or in two, as the plan says: every rank sums one part and writes
it to all. Which of them is shorter is a matter of size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Shots
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.transports import SymmetricTransport
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, Transfer

COLLECTIVES = ("allreduce", "reducescatter", "allgather", "broadcast")
KINDS = ("nvlink", "nvswitch")
"""Links over which GPUs read each other's memory."""
Edge = tuple[int, int]


def is_direct(decisions: CollectiveDecisions) -> bool:
    """Whether every chunk goes straight between one rank and all others, where all ranks reach each other over links
    that GPUs read through."""
    pairs = sum(link.kind in KINDS for link in decisions.links)
    if decisions.collective not in COLLECTIVES or pairs < decisions.ranks * (decisions.ranks - 1):
        return False
    chunks: dict[int, list[Transfer]] = defaultdict(list)
    for move in decisions.transfers:
        chunks[move.chunk].append(move)
    owners = [_owner(moves, decisions.ranks) for moves in chunks.values()]
    if None in owners:
        return False
    if decisions.collective == "broadcast":
        return len(set(owners)) == 1
    counts = Counter(owners)
    return len(counts) == decisions.ranks and len(set(counts.values())) == 1


def _owner(moves: Iterable[Transfer], ranks: int) -> int | None:
    """The rank that all others send a chunk to, or that sends it to all others, or both; None for other routes."""
    sums = [(move.dst, move.src) for move in moves if move.reduce]
    copies = [(move.src, move.dst) for move in moves if not move.reduce]
    hubs = {hub for hub, _ in (*sums, *copies)}
    complete = all(not part or (len(part) == len({end for _, end in part}) == ranks - 1) for part in (sums, copies))
    return hubs.pop() if complete and len(hubs) == 1 else None


def symmetric_us(decisions: CollectiveDecisions, hardware: Hardware, input_bytes: int) -> dict[Shots, float]:
    """us of a call with `input_bytes` of input over symmetric memory, by how it is done; none where the profile has
    no costs of it, the ranks are on several hosts, or the plan is not direct.

    A launch, and for each shot a meeting of all ranks, one access, and what the busiest link or port
    carries; and a copy into the buffer and out of it.
    """
    costs = hardware.transports.symmetric
    if costs is None or hardware.all_nodes > 1 or not (is_in_switch(decisions) or is_direct(decisions)):
        return {}
    gathers = decisions.ranks if decisions.collective == "allgather" else 1
    scale = input_bytes / decisions.input_bytes
    wires_ns = _in_switch_ns(decisions) if decisions.switched else _on_links_ns(decisions)
    copied = input_bytes * (1 + gathers)
    return {name: round(_us(costs, [ns * scale for ns in each], copied), 3) for name, each in wires_ns.items()}


def is_in_switch(decisions: CollectiveDecisions) -> bool:
    """Whether one switch does all of it for all ranks, as kernels with multimem loads and stores can."""
    whole = any(len(switch.members) == decisions.ranks for switch in decisions.switches)
    return bool(decisions.switched) and whole and decisions.collective in COLLECTIVES


def shots_of(decisions: CollectiveDecisions) -> Shots:
    """How often all ranks meet for what a switch does: a sum is done once, so that all ranks get the same."""
    return "two-shot" if decisions.collective == "allreduce" else "one-shot"


def _in_switch_ns(decisions: CollectiveDecisions) -> dict[Shots, list[float]]:
    """How long the ports of the switch take, without its latency, in equal shares for each shot."""
    shots = shots_of(decisions)
    count = 2 if shots == "two-shot" else 1
    alpha_ns = max(switch.alpha_ns for switch in decisions.switches)
    return {shots: [max(0, decisions.makespan_ns / count - alpha_ns)] * count}


def _on_links_ns(decisions: CollectiveDecisions) -> dict[Shots, list[float]]:
    """How long the busiest link or port takes, for each shot."""
    sums = [(move.src, move.dst) for move in decisions.transfers if move.reduce]
    copies = [(move.src, move.dst) for move in decisions.transfers if not move.reduce]
    if decisions.collective == "allreduce":
        chunks = len({move.chunk for move in decisions.transfers})
        return {
            "one-shot": [_busiest_ns(decisions, dict.fromkeys(sums, chunks))],
            "two-shot": [_busiest_ns(decisions, Counter(part)) for part in (sums, copies)],
        }
    return {"one-shot": [_busiest_ns(decisions, Counter(sums or copies))]}


def _us(costs: SymmetricTransport, wires_ns: list[float], copied_bytes: int) -> float:
    meetings = len(wires_ns) * (costs.barrier_us + costs.access_us)
    wires = sum(wires_ns) / 1000 / costs.link_efficiency
    return costs.launch_us + meetings + wires + copied_bytes / MEBIBYTE * costs.copy_us_per_MB


def _busiest_ns(decisions: CollectiveDecisions, chunks: Mapping[Edge, int]) -> float:
    """How long links and ports take for `chunks` over each link, all at once."""
    betas = {(link.src, link.dst): link.beta_ns for link in decisions.links}
    times = [count * betas[edge] for edge, count in chunks.items()]
    for port in decisions.ports:
        times.append(sum(chunks.get(e, 0) * (betas[e] if port.beta_ns is None else port.beta_ns) for e in port.links))
    return max(times)
