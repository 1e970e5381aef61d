"""All-pairs: every chunk goes straight from where it is to everyone who wants it, the farthest shift last.

The direct algorithm of MSCCL and NCCL's alltoall; an allreduce takes it twice (each rank sums up one part and sends it
back). One hop, so it is short on machines whose ranks all reach each other, and it cannot use relays.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates.template import RoundHop, Variant, best_draft, links_of


def synthesize(request: Request, effort: Effort) -> Draft:
    """Raises InputError where two ranks that must exchange data have no link."""
    problem = request.problem(1)

    def spread(turned: bool) -> Iterator[RoundHop]:
        links = links_of(problem, turned)
        for number, chunk in enumerate(problem.chunks):
            for target in sorted(chunk.targets - chunk.sources):
                near = [(links[s, target].alpha_ns + links[s, target].beta_ns, s) for s in sorted(chunk.sources)
                        if (s, target) in links]  # fmt: skip
                source = min(near)[1] if near else chunk.owner
                yield RoundHop((target - source) % problem.ranks, number, source, target)

    return best_draft("all-pairs", [Variant("", problem, spread)])
