"""Greedy synthesis for many ranks: time-expanded matching where chunks are copied (TACOS); where they are not,
forwarding along balanced cheapest paths, or a timetable searched chunk by chunk where there are few. Symmetric machines
are planned for one rank of each orbit of their translations.

Reducing collectives run the hops of their routed form backwards. Several piece counts, seeds and rules are tried, the
soonest end is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from treadle.planner.documents.collective import max_chunkup
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.forwarding import forward
from treadle.planner.passes.collective.groups import level_sizes
from treadle.planner.passes.collective.insertion import timetable
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.matching import Hop, Rules, match
from treadle.planner.passes.collective.messages import Message, in_order, moves_of_messages, schedule, timed, times
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.translations import Translations, translations

MATCHED = frozenset({"allgather", "reducescatter", "allreduce", "broadcast", "reduce"})
PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
ROOTED_PIECES = (1, 4, 16, 64, 128, 256)
"""Pieces of what one rank sends to all or takes from all: only many keep every link busy."""
SEEDS = 3
LIKELY = 2
"""How many rules, the best for the piece count before, are tried for the next."""
MOST_WORK = 20_000_000
"""Links to look at in one try above which greedy gives up."""
PATIENCE = 2
"""Piece counts in a row that may be no better than the best before."""
WORK = 200_000
"""Links to look at over all tries, about 20 us each. A first try is always made."""
MOST_TRANSFERS = 2**20
PASSES, INSERTIONS = 200, 200_000
"""Timetables that are tried for one piece count, and links to look at for all of them, about 3 us each."""
LEAST_CHUNK = 512
"""Bytes below which a part is not cut into more pieces."""


@dataclass(frozen=True)
class _Try:
    problem: Problem
    group: Translations
    rules: Rules
    messages: list[Message]
    time_ns: int


def synthesize(request: Request, effort: Effort) -> Draft:
    """The best of the tries that fit the work allowed.

    Raises InputError for inputs that do not fit together and where a rank cannot be reached.
    """
    best: _Try | None = None
    for found in _tries(request, effort):
        if best is None or found.time_ns < best.time_ns:
            best = found
    if best is None:
        raise InputError("some rank cannot be reached over the links that the sketch leaves", where="method greedy")
    final = timed if effort.exhausted() else schedule
    symmetric = f", {best.group.order} translations" if best.group.digits else ""
    return Draft(
        problem=best.problem,
        transfers=final(best.problem, best.messages, best.group),
        method=f"greedy{symmetric}, chunks of {format_bytes(best.problem.chunk_bytes)}",
        status="time-expanded matching" if request.collective in MATCHED else "balanced forwarding",
    )


def _tries(request: Request, effort: Effort) -> Iterator[_Try]:
    """Piece counts upwards while they help, all rules for each; then other seeds for the best of these."""
    spent = 0
    best: _Try | None = None
    worse = 0
    ends: list[tuple[int, int]] = []
    likely: list[int] = []
    ranks = request.hardware.ranks
    rooted = request.collective in ("broadcast", "reduce")
    for pieces in ROOTED_PIECES if rooted else PIECES:
        if pieces > 1 and pieces > max_chunkup(request.collective, ranks):
            break
        problem = request.problem(pieces)
        group = translations(problem)
        hops = sum(len(chunk.targets) for chunk in problem.chunks)
        cost = hops // group.order * (len(problem.links) // ranks)
        if pieces > 1 and (problem.chunk_bytes < LEAST_CHUNK or hops > MOST_TRANSFERS or spent + cost > WORK):
            break
        if cost > MOST_WORK:
            raise InputError(
                f"would look at {cost} links, expected at most {MOST_WORK}; use hierarchical",
                where="method greedy",
            )
        before, ends = best, []
        for place in likely if pieces > 1 else range(len(_rules(problem))):
            found = _try(problem, group, _rules(problem)[place], 0)
            spent += cost
            if found is not None:
                ends.append((found.time_ns, place))
                yield found
                best = found if best is None or found.time_ns < best.time_ns else best
            if spent > WORK or effort.exhausted():
                break
        likely = [place for _, place in sorted(ends)[:LIKELY]] or likely
        worse = worse + 1 if best is before else 0
        if worse == PATIENCE or spent > WORK or effort.exhausted():
            break
    for seed in range(1, SEEDS) if best is not None and best.problem.collective in MATCHED else ():
        assert best is not None
        cost = spent // 4
        spent += cost
        if spent > WORK or effort.exhausted():
            return
        found = _try(best.problem, best.group, best.rules, seed)
        if found is not None:
            yield found


def _try(problem: Problem, group: Translations, rules: Rules, seed: int) -> _Try | None:
    """The collective under one set of rules, None where these leave some rank out."""
    pipelined = problem.latency == "pipelined"
    network = problem.topology.routing
    back: list[Hop] | None = []
    there: list[Hop] | None = []
    if problem.collective not in MATCHED:
        home = group.representative
        numbered = [entry for entry in enumerate(problem.chunks) if home[entry[1].owner] == entry[1].owner]
        there = forward(network, group, numbered, pipelined=pipelined)
        work = len(network.links) * sum(len(chunk.targets) for _, chunk in numbered)
        made = timetable(network, group, numbered, min(PASSES, INSERTIONS // max(1, work)), pipelined=pipelined)
        if made is not None:
            drafts = [messages_of([], hops) for hops in (there, made.hops)]
            ends = [times(problem, messages, group).makespan for messages in drafts]
            return _Try(problem, group, rules, drafts[ends.index(min(ends))], min(ends))
    else:
        numbers = [number for number, chunk in enumerate(problem.chunks) if chunk.owner in group.roots]
        owners = [problem.chunks[number].owner for number in numbers]
        if problem.half != "forward":
            back = match(network, group, owners, numbers, replace(rules, turns=True), seed)
        if problem.half != "inverted":
            there = match(network, group, owners, numbers, rules, seed)
    if back is None or there is None:
        return None
    messages = messages_of(back, there)
    return _Try(problem, group, rules, messages, in_order(moves_of_messages(problem, messages, group)).makespan)


def _rules(problem: Problem) -> list[Rules]:
    """Rules worth trying: nodes entered once where there are several, slow links left out where speeds differ."""
    pipelined = problem.latency == "pipelined"
    if problem.collective not in MATCHED:
        return [Rules(pipelined=pipelined)]
    lats = sorted({link.alpha_ns + link.beta_ns for link in problem.links.values()})
    several = [size for size in level_sizes(problem.topology) if 1 < size < problem.ranks]
    return [
        Rules(once=once, slowest=slowest, pipelined=pipelined)
        for once in (*several, None)
        for slowest in (None, *lats[-2:-4:-1])
    ]


def messages_of(back: list[Hop], there: list[Hop]) -> list[Message]:
    """Hops to run backwards, adding up, and then hops to run as they are."""
    return [
        *(Message((hop.chunk,), hop.dst, hop.src, True) for hop in reversed(back)),
        *(Message((hop.chunk,), hop.src, hop.dst) for hop in there),
    ]
