"""Local search over a whole plan: evict until it fits the budget, keep more wherever it fits, exchange at random.

Every move is one of `lifetimes.py`, tried and priced exactly. The same plan and effort give the same result.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from math import inf

import numpy as np

from treadle.planner.passes.memory.formulation.useful import leanest_backward
from treadle.planner.passes.memory.lower import store_all
from treadle.planner.passes.memory.methods.lifetimes import Lifetimes
from treadle.planner.passes.memory.problem import MemoryProblem

Move = Callable[[Lifetimes], bool]
TRIED = 48
"""Moves tried before the best is taken, those of least time per byte first."""
STAGES = 6
"""Stages, those of the highest peaks, in which relief is sought."""

PASSES = 8
"""Rounds over all recomputations, at most."""


def use_leanest(lives: Lifetimes) -> None:
    """Give every backward node its leanest implementation, and every run the one of least workspace."""
    for k, way in enumerate(leanest_backward(lives.problem)):
        if way != lives.way[k] and lives.use_backward(k, way):
            lives.commit()
        lives.rollback()
    for i, node in enumerate(lives.problem.fwd):
        for place, life in enumerate(lives.lives[i]):
            again = life.start > 0
            lives.use(i, place, min(range(len(node.impls)), key=lambda w: (node.impls[w].workspace(again), w)))
    lives.commit()


def whole_plans(problem: MemoryProblem) -> list[Lifetimes]:
    """Store-all, with the fastest implementations and with the leanest."""
    fastest, leanest = Lifetimes(problem, store_all(problem)), Lifetimes(problem, store_all(problem))
    use_leanest(leanest)
    return [fastest, leanest] if leanest.snapshot() != fastest.snapshot() else [fastest]


def local_search(
    lives: Lifetimes, room: int, rounds: int, seed: int = 0, on_better: Callable[[Lifetimes], None] = lambda lives: None
) -> None:
    """Change a plan within `room` bytes, the base not counted, until `rounds` tries in a row make nothing faster.

    A try makes one to four random changes near each other (keep what does not fit, recompute what is kept, take another
    implementation), brings the plan back within the budget and fills what is free. `on_better` gets the plan after each
    gain.
    """
    dice = random.Random(seed)
    refill(lives, room)
    on_better(lives)
    failed = 0
    while failed < rounds:
        before, time = lives.snapshot(), lives.time_ns
        centre = dice.randrange(len(lives.lives))
        changes = [_change(lives, dice, centre) for _ in range(dice.choice((1, 1, 2, 3, 4)))]
        failed += 1
        if any(changes) and evict(lives, room, time + time // 8):
            refill(lives, room, quick=True)
            if lives.time_ns < time:
                failed = 0
                on_better(lives)
            if lives.time_ns <= time:
                continue
        lives.restore(before)


def _change(lives: Lifetimes, dice: random.Random, centre: int) -> bool:
    """One change at random to a node near `centre`; whether there was one to make."""
    nodes, backward = lives.problem.fwd, lives.problem.bwd
    spread = len(nodes) / 12 + 2
    i = min(max(0, round(dice.gauss(centre, spread))), len(nodes) - 1)
    found = lives.lives[i]
    kind = dice.random()
    done = False
    if kind < 0.25 and any(len(back.impls) > 1 for back in backward):
        k = min(max(0, round(dice.gauss(len(backward) * (1 - centre / len(nodes)), spread))), len(backward) - 1)
        choices = len(backward[k].impls)
        done = choices > 1 and lives.use_backward(k, dice.randrange(choices))
    elif len(found) > 1 and kind < 0.6:
        done = lives.join(i, dice.randrange(1, len(found)))
    elif found:
        place = dice.randrange(len(found))
        later = [t for t in lives.reads(i) if found[place].start < t <= found[place].end]
        done = bool(later) and lives.cut(i, place, dice.choice(later))
    if done:
        lives.commit()
    else:
        lives.rollback()
    return done


def evict(lives: Lifetimes, room: int, most_ns: int | None = None, most_work: float = inf) -> bool:
    """Evict, least time per byte first, until no stage exceeds `room` bytes.

    False where that fails, makes the plan slower than `most_ns` or takes `lives.work` beyond `most_work`; the plan is
    then partly evicted.
    """
    over = lives.over(room)
    while over:
        time = lives.time_ns
        if (most_ns is not None and time > most_ns) or lives.work > most_work:
            return False
        best: tuple[float, Move] | None = None
        for worst in np.argsort(-lives.peak, kind="stable")[:STAGES].tolist():
            if best is not None or lives.peak[worst] <= room:
                break
            for _, move in sorted(_relief(lives, worst), key=lambda found: found[0])[:TRIED]:
                if move(lives) and (now := lives.over(room)) < over:
                    score = (lives.time_ns - time + 1) / (over - now)
                    if best is None or score < best[0]:
                        best = score, move
                lives.rollback()
        if best is None:
            return False
        best[1](lives)
        lives.commit()
        over = lives.over(room)
    return True


def _relief(lives: Lifetimes, worst: int) -> Iterator[tuple[float, Move]]:
    """(estimated time per byte, move) that may lower the peak of stage `worst`: evict what it keeps or makes, take
    other implementations of what it runs, and keep what it recomputes."""
    for i, found in enumerate(lives.lives):
        for place, life in enumerate(found):
            if life.start <= worst < life.end and lives.size[i] and i not in lives.fixed:
                stage = min(t for t in lives.reads(i) if t > worst)
                yield _worth(lives, i), partial(Lifetimes.cut, i=i, place=place, stage=stage)
            if life.start == worst and len(lives.problem.fwd[i].impls) > 1:
                for impl in range(len(lives.problem.fwd[i].impls)):
                    yield 0, partial(Lifetimes.use, i=i, place=place, impl=impl)
            if life.start == worst > 0:
                yield 0, partial(Lifetimes.join, i=i, place=place)
    if worst:
        for way in range(len(lives.problem.bwd[worst - 1].impls)):
            if way != lives.way[worst - 1]:
                yield 0, partial(Lifetimes.use_backward, k=worst - 1, impl=way)


def refill(lives: Lifetimes, room: int, quick: bool = False, most_work: float = inf) -> None:
    """Keep whatever still fits into `room` bytes and saves time, most time per byte first, until nothing does or
    `lives.work` is beyond `most_work`.

    quick: one round, over what fits without evictions.
    """
    for _ in range(1 if quick else PASSES):
        changed = False
        for _, i, stage in sorted((-_worth(lives, i), i, stage) for i, stage in _gaps(lives)):
            if lives.work > most_work:
                return
            changed |= _try_join(lives, i, stage, room, quick)
        changed |= _fastest_implementations(lives, room, quick)
        if not changed:
            return


def _worth(lives: Lifetimes, i: int) -> float:
    node = lives.problem.fwd[i]
    return node.impls[lives.fastest[i][1]].time(True) / (node.out_bytes + 1)


def _gaps(lives: Lifetimes) -> Iterator[tuple[int, int]]:
    """(node, stage) of every recomputation."""
    for i, found in enumerate(lives.lives):
        for life in found:
            if life.start:
                yield i, life.start


def _try_join(lives: Lifetimes, i: int, stage: int, room: int, quick: bool) -> bool:
    """Keep the result of i from its lifetime before `stage` to that which starts there, if that fits and saves time."""
    place = next((at for at, life in enumerate(lives.lives[i]) if life.start == stage), None)
    if place is None:
        return False
    if quick:
        between = lives.peak[lives.lives[i][place - 1].end + 1 if place else 1 : stage]
        if len(between) and between.max() + lives.size[i] > room:
            return False
    before = lives.time_ns
    return _settle(lives, lives.join(i, place), before, room)


def _settle(lives: Lifetimes, done: bool, before: int, room: int) -> bool:
    """Commit the last move if it is complete, fits and saves time."""
    if done and lives.worst() <= room and lives.time_ns < before:
        lives.commit()
        return True
    lives.rollback()
    return False


def _fastest_implementations(lives: Lifetimes, room: int, quick: bool) -> bool:
    """Give each run the fastest implementation that fits. A slower one of a backward node may save time elsewhere, and
    is left out with `quick`."""
    changed = False
    for i, node in enumerate(lives.problem.fwd):
        if len(node.impls) == 1:
            continue
        for place in range(len(lives.lives[i])):
            for way, impl in enumerate(node.impls):
                life = lives.lives[i][place]
                if impl.time(life.start > 0) < node.impls[life.impl].time(life.start > 0):
                    before = lives.time_ns
                    changed |= _settle(lives, lives.use(i, place, way), before, room)
    for k, back in enumerate(lives.problem.bwd):
        for way, other in enumerate(back.impls):
            if way != lives.way[k] and not (quick and other.time_ns >= back.impls[lives.way[k]].time_ns):
                before = lives.time_ns
                changed |= _settle(lives, lives.use_backward(k, way), before, room)
    return changed
