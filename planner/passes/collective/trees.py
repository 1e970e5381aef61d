"""Pipelined tree packings: every rank's part spreads along a few trees that together reach the cut bound (ForestColl).

    1. the cut bound: the least time in which every rank can take in what it must, whatever the routes (`universal`)
    2. a packing: `k` trees for each root whose greatest load is that time, or as near as few trees come (`packing`)
    3. pieces: each tree's share is cut so that transport along the tree overlaps, and messages are timed so that the
       busiest ports never wait (`steady`)
    4. reductions run backwards in time; an allreduce is a reduction, then the spread along the same trees

Numbers of trees and of pieces are chosen by the time that the schedule takes, the fewest among near equals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treadle.planner.documents.collective import MAX_PLACES, max_chunkup
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import Transfer
from treadle.planner.passes.collective.collectives import ROUTED_AS
from treadle.planner.passes.collective.fabric import Fabric, fabric_of
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.packing import Packing, Tree, pack
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.steady import Rule, Step, backwards, ends, in_turn, periodic
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.universal import congestion

TREES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
ROOTED_TREES = (1, 2, 3, 4, 6, 7, 8, 12, 15)
NEAR = 1.002
"""Times that differ by less are the same, and the plan with fewer pieces is kept."""
BETTER = 1.01
"""What another tree per root must gain in throughput to be tried."""
PATIENCE = 3
"""Numbers of trees without an improvement after which the search ends."""
MAX_TRANSFERS = 60_000
MAX_PLACED = 2_000
"""Ranks on all trees up to rotation, from which on no more trees per root are tried."""
SCREENED = 16_000
"""Messages up to rotation for which packings of equal load are compared."""
RULES: tuple[Rule, ...] = ("path", "work", "turn")
COMPARED = 4_000
"""Messages up to rotation for which every rule is tried at every number of pieces."""
MAX_PIECES = 128
"""On each tree: the fill of the pipeline is then below a hundredth for trees that are not long."""
MAX_STEPS = 24_000
"""Messages up to rotation that one schedule may have."""


@dataclass(frozen=True)
class _Found:
    problem: Problem
    fabric: Fabric
    trees: tuple[Tree, ...]
    steps: tuple[Step, ...]
    ends_ns: int


def synthesize(request: Request, effort: Effort) -> Draft:
    """The fastest pipelined tree packing found.

    Raises InputError for collectives whose parts are not spread to (or summed up from) every rank, and where sketch,
    hardware and collective do not fit together; InfeasibleError where a rank cannot be reached.
    """
    if ROUTED_AS[request.collective] not in ("allgather", "broadcast"):
        raise InputError(
            f"method trees spreads every part to every rank, which {request.collective} does not ask for; expected "
            "allgather, reducescatter, allreduce, broadcast or reduce, or another method",
            where="--method",
        )
    problem = request.problem(1)
    if problem.ranks == 1:
        return Draft(problem, (), "trees", "nothing to send")
    fabric = fabric_of(problem, rotate=ROUTED_AS[request.collective] == "allgather")
    best: _Found | None = None
    label = ""
    for count, packings in _packings(problem, fabric):
        trees, rule = _screened(request, packings, count)
        for found in _pipelines(request, trees, count, rule):
            if effort.exhausted() and best is not None:
                break
            if best is None or found.ends_ns * NEAR < best.ends_ns:
                best, label = found, f"{count} trees per root, {found.problem.chunkup // count} pieces each"
    assert best is not None
    return Draft(best.problem, _transfers(best), f"trees: {label}", "packing within the cut bound's prices")


def _roots(problem: Problem, fabric: Fabric, count: int) -> list[int]:
    if ROUTED_AS[problem.collective] == "broadcast":
        return [problem.root] * count
    return [root for root in range(fabric.shift) for _ in range(count)]


def _packings(problem: Problem, fabric: Fabric) -> Iterator[tuple[int, list[Packing]]]:
    """Packings by trees per root, each better than those with fewer; the search ends near the bound."""
    least = congestion(problem)
    rooted = ROUTED_AS[problem.collective] == "broadcast"
    best: float | None = None
    vain = 0
    for count in ROOTED_TREES if rooted else TREES:
        roots = _roots(problem, fabric, count)
        if (count > 1 and len(roots) * problem.ranks > MAX_PLACED) or count > max_chunkup(
            problem.collective, problem.ranks
        ):
            break
        found = pack(fabric, roots, least * count)
        share = min(packing.busy_ns for packing in found) / count
        vain += 1
        if best is None or share * BETTER < best:
            best, vain = share, 0
            yield count, found
        elif rooted and share <= best * BETTER:
            yield count, found  # more trees of one root are lower ones
        if rooted:
            if count >= problem.ranks:
                break
        elif share <= float(least) * BETTER or vain == PATIENCE:
            break


def _screened(request: Request, packings: Sequence[Packing], count: int) -> tuple[tuple[Tree, ...], Rule]:
    """Among packings of equal load, the one whose schedule ends first with two pieces, and its rule."""
    ranks = request.hardware.ranks
    pieces = min(2, max(1, max_chunkup(request.collective, ranks) // count))
    work = count * len(packings[0].trees) * (ranks - 1) * pieces
    tried = packings[: max(1, SCREENED // work)]
    problem = request.problem(count * pieces)
    choices = [(packing.trees, rule) for packing in tried for rule in RULES]
    return min(choices, key=lambda choice: _timed(problem, choice[0], pieces, choice[1]).ends_ns)


def _pipelines(request: Request, trees: tuple[Tree, ...], count: int, rule: Rule) -> Iterator[_Found]:
    """The packing with 1, 2, 4, ... pieces on each tree, while that ends sooner."""
    before: int | None = None
    pieces = 1
    while True:
        ranks = request.hardware.ranks
        if count * pieces > max_chunkup(request.collective, ranks):
            return
        problem = request.problem(count * pieces)
        if pieces > 1 and (
            pieces > MAX_PIECES
            or len(trees) * (ranks - 1) * pieces > MAX_STEPS
            or len(problem.chunks) * (ranks - 1) > MAX_TRANSFERS
            or len(problem.chunks) * ranks > MAX_PLACES
            or problem.chunk_bytes < 2
        ):
            return
        rules = RULES if len(trees) * (ranks - 1) * pieces <= COMPARED else (rule,)
        found, rule = min(
            ((_timed(problem, trees, pieces, rule), rule) for rule in rules), key=lambda timed: timed[0].ends_ns
        )
        yield found
        if before is not None and found.ends_ns > before:
            return
        before = found.ends_ns
        pieces *= 2


def _timed(problem: Problem, trees: tuple[Tree, ...], pieces: int, rule: Rule) -> _Found:
    fabric = fabric_of(problem, rotate=ROUTED_AS[problem.collective] == "allgather")
    pipelined = problem.latency == "pipelined"
    spread = periodic(fabric, trees, pieces, rule=rule, pipelined=pipelined, sums=False)
    if problem.half == "forward":
        steps: Sequence[Step] = spread
    else:
        reduced = backwards(fabric, periodic(fabric, trees, pieces, rule=rule, pipelined=pipelined, sums=True))
        inverted = problem.half == "inverted"
        steps = in_turn(fabric, reduced if inverted else [*reduced, *spread], pipelined=pipelined, inverted=inverted)
    end = max(_arrival(problem, step) for step in steps) if problem.half != "forward" else ends(fabric, steps)
    return _Found(problem, fabric, trees, tuple(steps), end)


def _arrival(problem: Problem, step: Step) -> int:
    link = problem.links[step.src, step.dst]
    return step.send + link.alpha_ns + link.beta_ns


def _transfers(found: _Found) -> tuple[Transfer, ...]:
    """Every step and its rotations, as the plan states them."""
    problem, shift, ranks = found.problem, found.fabric.shift, found.problem.ranks
    of_root: dict[int, int] = {}
    number = []
    for tree in found.trees:
        number.append(of_root.get(tree.root, 0))
        of_root[tree.root] = number[-1] + 1
    pieces = problem.chunkup // max(of_root.values())
    rooted = ROUTED_AS[problem.collective] == "broadcast"
    moves = []
    for s in found.steps:
        piece = number[s.tree] * pieces + s.piece
        root = found.trees[s.tree].root
        arrive = _arrival(problem, s)
        for turn in range(0, ranks, shift):
            owner, src, dst = (root + turn) % ranks, (s.src + turn) % ranks, (s.dst + turn) % ranks
            chunk = piece if rooted else owner * problem.chunkup + piece
            moves.append((s.send, src, dst, chunk, arrive, s.reduce))
    moves.sort()
    sent: dict[tuple[int, int], int] = {}
    transfers = []
    for send, src, dst, chunk, arrive, reduce in moves:
        batch = sent.get((src, dst), 0)
        sent[src, dst] = batch + 1
        transfers.append(Transfer(chunk, src, dst, send, arrive, batch, reduce))
    return tuple(transfers)
