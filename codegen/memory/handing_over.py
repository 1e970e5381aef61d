"""Which gradients of a backward pass reach autograd together.

Each handover costs a node of autograd, about 15 us, which matters for short steps. So a gradient waits for later ones
while the step has memory for it, also where hooks of the caller free gradients at once, and for at most a sixteenth of
the backward pass, so that collectives still overlap with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from treadle.codegen.memory.lower import ScheduledCall
from treadle.planner.graph.index import Graph

TIMES = 16


def handed_together(backward: Sequence[ScheduledCall], graph: Graph) -> list[list[str]]:
    """The leaves of all gradients in the order in which these are ready, in the groups that are handed over.

    `live_bytes` counts gradients that were handed over. Without them, no call with its workspace and with the gradients
    that wait takes more than the calls themselves.
    """
    owners = [{graph.owner[gradient] for _, gradient in event.gives} for event in backward]
    given = [sum(map(graph.storage_bytes, each)) for each in owners]
    own = [event.live_bytes - before for event, before in zip(backward, accumulate(given, initial=0), strict=False)]
    most, span = max(own, default=0), max(1, len(backward) // TIMES)
    groups: list[list[str]] = []
    waiting = since = 0
    for place, (event, live, ready) in enumerate(zip(backward, own, given, strict=True)):
        inside = (event.call.workspace_bytes or 0) if event.call else 0
        if place - since >= span or live + inside + waiting > most:
            waiting = 0
        if not event.gives:
            continue
        if not waiting:
            groups.append([])
            since = place
        waiting += max(ready, 1)
        groups[-1].extend(leaf for leaf, _ in event.gives)
    return groups
