"""The timeline of an allreduce in the planned order: its hops as tasks, which end when it is predicted to."""

from __future__ import annotations

from fractions import Fraction

from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.patterns import Edge, HopPattern, HopRound, HopTree, pattern_of
from treadle.planner.passes.ranks.problem import RanksProblem
from treadle.planner.passes.ranks.shared_links import SharedLinks, both_ways
from treadle.planner.timeline.simulator import Task


def allreduce_of(decisions: RanksDecisions) -> tuple[Task, ...]:
    """The hops of an allreduce. Rounds and trees run twice, to add up and to spread the sum; a hop of a ring carries
    all parts one after the other."""
    problem = decisions.problem
    pattern = pattern_of(problem)
    laid = _Laid(problem, decisions.order)
    if problem.near and problem.algorithm != "plan":
        return _shared(laid, SharedLinks(problem))
    if problem.algorithm in ("ring", "nccl-ring"):
        return _ring(laid, pattern)
    if pattern.rounds:
        return _rounds(laid, pattern.rounds)
    return _trees(laid, pattern.trees) if pattern.trees else _hops(laid, pattern)


class _Laid:
    """Places with the hosts of an order."""

    def __init__(self, problem: RanksProblem, order: tuple[int, ...]) -> None:
        self.problem, self.order = problem, order

    def hop(self, place: int, other: int, share: Fraction) -> int:
        size = share * self.problem.size_bytes
        return self.sent(place, other, -(-size.numerator // size.denominator))

    def sent(self, place: int, other: int, size: int) -> int:
        a, b = self.order[place], self.order[other]
        if a == b:
            return 0
        rates = self.problem.ns_per_MiB
        return self.problem.latency_ns[a][b] + (0 if rates is None else -(-rates[a][b] * size // MEBIBYTE))

    def name(self, place: int, other: int) -> str:
        a, b = (self.problem.hosts[self.order[each]].name for each in (place, other))
        return f"{a} -> {b}"


def _shared(laid: _Laid, links: SharedLinks) -> tuple[Task, ...]:
    """Hops that share links: all of a ring at once, rounds one after the other, trees as a whole."""
    pattern, order = links.pattern, laid.order
    if not pattern.rounds:
        return (Task("trees, up and down", links.time_ns(order)),)
    if links.problem.algorithm in ("ring", "nccl-ring"):
        times, hops = 2 * (len(order) - 1), [pair for each in pattern.rounds for pair in each.pairs]
        taken = links.hops_ns(order, hops, pattern.rounds[0].share)
        return tuple(Task(f"{times} x {laid.name(*hop)}", times * ns) for hop, ns in zip(hops, taken, strict=True))
    tasks: list[Task] = []
    last: tuple[int, ...] = ()
    for number, each in enumerate((*pattern.rounds, *reversed(pattern.rounds)), 1):
        hops, first = both_ways(each.pairs), len(tasks)
        taken = links.hops_ns(order, hops, each.share)
        tasks += [
            Task(f"round {number}: {laid.name(*hop)}", ns, after=last) for hop, ns in zip(hops, taken, strict=True)
        ]
        last = (first + taken.index(max(taken)),)
    return tuple(tasks)


def _ring(laid: _Laid, pattern: HopPattern) -> tuple[Task, ...]:
    """2 (N - 1) times every hop, all hops at once."""
    times = 2 * (len(laid.order) - 1)
    return tuple(
        Task(f"{times} x {laid.name(*pair)}", times * laid.hop(*pair, each.share))
        for each in pattern.rounds
        for pair in each.pairs
    )


def _rounds(laid: _Laid, rounds: tuple[HopRound, ...]) -> tuple[Task, ...]:
    """A round begins when the dearest hop of the one before has ended."""
    tasks: list[Task] = []
    last: tuple[int, ...] = ()
    for number, each in enumerate((*rounds, *reversed(rounds)), 1):
        first = len(tasks)
        tasks += [
            Task(f"round {number}: {laid.name(*pair)}", laid.hop(*pair, each.share), after=last) for pair in each.pairs
        ]
        last = (max(range(first, len(tasks)), key=lambda place: tasks[place].duration),)
    return tuple(tasks)


def _trees(laid: _Laid, trees: tuple[HopTree, ...]) -> tuple[Task, ...]:
    """Up to the root, each place once its children have sent, and down again."""
    tasks: list[Task] = []
    for number, tree in enumerate(trees, 1):
        sent: dict[int, list[int]] = {}
        for edge in reversed(tree.edges):
            tasks.append(_tree_task(laid, f"tree {number} up", edge, tree.share, tuple(sent.get(edge[1], ()))))
            sent.setdefault(edge[0], []).append(len(tasks) - 1)
        root = tree.edges[0][0] if tree.edges else 0
        got = {root: tuple(sent.get(root, ()))}
        for edge in tree.edges:
            tasks.append(_tree_task(laid, f"tree {number} down", edge, tree.share, got[edge[0]]))
            got[edge[1]] = (len(tasks) - 1,)
    return tuple(tasks)


def _tree_task(laid: _Laid, name: str, edge: Edge, share: Fraction, after: tuple[int, ...]) -> Task:
    ends = edge[::-1] if name.endswith("up") else edge
    return Task(f"{name}: {laid.name(*ends)}", laid.hop(*ends, share), after=after)


def _hops(laid: _Laid, pattern: HopPattern) -> tuple[Task, ...]:
    return tuple(
        Task(f"{laid.name(hop.src, hop.dst)}", laid.sent(hop.src, hop.dst, hop.bytes), after=hop.after)
        for hop in pattern.hops
    )
