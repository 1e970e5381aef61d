"""The balance of a server: what each kind of part would allow, what is left of it, and what hides communication.

Rates are exchanges per second, summed over workers: one exchange is one worker that pushes and pulls the whole model.
"""

from __future__ import annotations

from typing import NamedTuple

from treadle.planner.passes.server.decisions import PartLoad, ServerDecisions
from treadle.planner.passes.server.prices import COMPUTATION

SECOND_NS = 10**9
KINDS = {"interface": "interfaces", "slot": "slots", "core": "cores"}


class PartLimit(NamedTuple):
    """The slowest part of one kind; `headroom` is its rate as a multiple of what the plan reaches."""

    kind: str
    part: PartLoad
    exchanges_per_s: float
    headroom: float


def exchanges_per_s(workers: int, time_ns: int) -> float:
    return workers * SECOND_NS / time_ns if time_ns else float("inf")


def kind_of(name: str) -> str:
    """`interface eth0` is one of the interfaces."""
    return KINDS.get(name.split(" ")[0], name)


def limits(decisions: ServerDecisions) -> tuple[PartLimit, ...]:
    """The limit of every kind of part, those first that allow least. Computation is one as well: workers do not
    exchange more often than they compute."""
    slowest: dict[str, PartLoad] = {}
    for part in decisions.parts:
        kind = kind_of(part.part)
        if kind not in slowest or part.time_ns > slowest[kind].time_ns:
            slowest[kind] = part
    most = max((part.time_ns for kind, part in slowest.items() if kind != COMPUTATION), default=0)
    found = [
        PartLimit(kind, part, exchanges_per_s(decisions.problem.workers, part.time_ns), most / part.time_ns)
        for kind, part in slowest.items()
        if part.time_ns
    ]
    return tuple(sorted(found, key=lambda limit: limit.exchanges_per_s))


def bottleneck(decisions: ServerDecisions) -> PartLoad | None:
    """The first of the parts with the longest time, computation apart; None where nothing takes time."""
    parts = [part for part in decisions.parts if part.part != COMPUTATION]
    slowest = max(parts, key=lambda part: part.time_ns, default=None)
    return slowest if slowest is not None and slowest.time_ns else None


def hidden_gbps(decisions: ServerDecisions) -> float | None:
    """Gbit/s, both directions added, that the busiest server must send and receive so that the exchange takes no longer
    than the computation; None without either."""
    loads = [part.load for part in decisions.parts if part.part.startswith("interface ") and part.load is not None]
    if not loads or not decisions.problem.compute_ns:
        return None
    return 16 * sum(loads) / decisions.problem.compute_ns
