"""Times of the most promising schedules of a program, on this machine, with one process for each rank.

First the schedules, each on what it was priced with, which is what `treadle generate` makes of it. Then an inner search
for the fastest of them: every algorithm with every protocol, on the channels that are predicted to be best, and for the
fastest of those other numbers of channels (CoCoNet, section 5.2). The slower half is given up after each round.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice, product, zip_longest

from treadle.codegen.fusion.generate import lowered_as
from treadle.codegen.fusion.lower import Lowered
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.machine.collectives import Algorithm
from treadle.planner.machine.dtypes import BYTES
from treadle.planner.passes.fusion.explanations import stage_choices
from treadle.planner.passes.fusion.price import price
from treadle.planner.passes.fusion.ranking import Ranked, Ranking, rank
from treadle.planner.search.clock import Clock
from treadle.runtime.fusion import processes
from treadle.runtime.fusion.build import Compiled, build
from treadle.runtime.fusion.data import fill
from treadle.runtime.fusion.measure import Timed, halving
from treadle.runtime.fusion.runs import Runs
from treadle.runtime.fusion.tensors import Tensors

MOST_CANDIDATES = 6
SEARCHED = 2
"""Schedules whose algorithm, protocol and channels are searched for."""
MOST_RANKS = 16
SCHEDULE_SECONDS, PAIR_SECONDS, CHANNEL_SECONDS = 10.0, 18.0, 4.0
"""Compile time for each part of the search; what has begun is still finished."""
MOST_BYTES = 1 << 30
"""Memory of the tensors that are allocated at once."""
REPEATS = 3
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "all-pairs", "hierarchical")
PROTOCOLS = ("Simple", "LL", "LL128")
CHANNELS = (1, 2, 4)

Show = Callable[[str], None]


@dataclass(frozen=True)
class _Candidate:
    ranked: Ranked
    lowered: Lowered
    compiled: Compiled

    @property
    def name(self) -> str:
        return " | ".join((self.ranked.name, *dict.fromkeys(self.lowered.ran.values())))


def measured(found: Ranking, show: Show = lambda _: None, clock: Clock | None = None) -> tuple[Ranking, dict[str, int]]:
    """Times of the schedules of least predicted time that this machine can run, and of choices of their collectives.
    All of them multiply with our own kernels, and the plan too.

    Returns the plan with the fastest schedule and choice, and ns by name of the schedule. Once `clock` has run out no
    further choice is compiled; the first schedule always is.

    Raises InputError for too many ranks, or where nothing can be run; MissingBackendError without g++.
    """
    ranks = found.bindings.ranks * found.bindings.groups
    if ranks > MOST_RANKS:
        raise InputError(f"found {ranks} ranks, expected at most {MOST_RANKS} to be measured here", where="--measure")
    clock = clock or Clock()

    def within(seconds: float) -> float:
        """A third of the time that is left, at most: what compiled is run after it."""
        return min(seconds, clock.left_s / 3)

    machine = found.machine.without_library
    found = replace(found, machine=machine, ranked=rank(found.space, found.bindings, machine, clock.over))
    why: list[str] = ["it has no schedules"]
    first = list(islice(_compiled(found, found.ranked, within(SCHEDULE_SECONDS), why, show), MOST_CANDIDATES))
    if not first:
        raise InputError(f"found no schedule that runs on processes: {why[-1]}", where="--measure")

    def timed(candidates: Sequence[_Candidate]) -> list[Timed[_Candidate]]:
        def run(few: Sequence[_Candidate], repeats: int) -> Sequence[Sequence[float]]:
            show(f"running {len(few)} of {len(candidates)}, {repeats} times each")
            return _seconds(few, repeats)

        return halving(candidates, run, repeats=REPEATS)

    schedules = timed(first)
    if clock.over():
        return _measured(found, schedules)
    best = [each.candidate for each in schedules[:SEARCHED]]
    pairs = [one for ones in zip_longest(*(_pairs(found, of.ranked) for of in best)) for one in ones if one is not None]
    searched = timed([*best, *_new(_compiled(found, pairs, within(PAIR_SECONDS), why, show), best)])
    if clock.over():
        return _measured(found, [*schedules, *searched])
    fastest = searched[0].candidate
    others = _new(
        _compiled(found, _channels(found, fastest.ranked), within(CHANNEL_SECONDS), why, show),
        [each.candidate for each in searched],
    )
    last = timed([fastest, *others]) if others else []
    return _measured(found, [*schedules, *searched, *last])


def _measured(found: Ranking, every: Iterable[Timed[_Candidate]]) -> tuple[Ranking, dict[str, int]]:
    """Among several times of one choice the last counts: it has most runs, next to its closest rivals."""
    times = {each.candidate.name: each for each in every}
    best: dict[str, Timed[_Candidate]] = {}
    for each in sorted(times.values(), key=lambda timed: timed.seconds):
        best.setdefault(each.candidate.ranked.name, each)
    taken = next(iter(best.values())).candidate.ranked
    ranked = tuple(taken if of.name == taken.name else of for of in found.ranked)
    nanoseconds = {name: round(each.seconds * 1e9) for name, each in best.items()}
    return replace(found, ranked=ranked), nanoseconds


def _new(made: Iterable[_Candidate], known: Sequence[_Candidate]) -> list[_Candidate]:
    """Without those that are known, or that came out as another one since no kernel carries them."""
    names = {each.name for each in known}
    found: list[_Candidate] = []
    for each in made:
        if each.name not in names and not each.lowered.changed:
            names.add(each.name)
            found.append(each)
    return found


# What is tried.


def _pairs(found: Ranking, ranked: Ranked) -> list[Ranked]:
    """A schedule on every algorithm and protocol, on the channels of least predicted time. In such an order that the
    first few have all algorithms and all protocols; else by that time."""
    left: dict[tuple[str, str], Ranked] = {}
    for algorithm, protocol in product(ALGORITHMS, PROTOCOLS):
        tried = [one for channels in CHANNELS for one in _on(found, ranked, algorithm, protocol, channels)]
        if tried:
            left[algorithm, protocol] = min(tried, key=lambda one: one.time_ns)
    taken: Counter[str] = Counter()
    ordered = []
    while left:
        pair = min(left, key=lambda pair: (taken[pair[0]] + taken[pair[1]], left[pair].time_ns))
        taken.update(pair)
        ordered.append(left.pop(pair))
    return ordered


def _channels(found: Ranking, ranked: Ranked) -> list[Ranked]:
    """A schedule on other numbers of channels."""
    config = next((stage.config for stage in ranked.price.stages if stage.config is not None), None)
    if config is None:
        return []
    return [one for channels in CHANNELS for one in _on(found, ranked, config.algorithm, config.protocol, channels)]


def _on(found: Ranking, ranked: Ranked, algorithm: Algorithm, protocol: str, channels: int) -> Iterator[Ranked]:
    """The schedule with all its collectives on this choice and priced so; nothing where the machine lacks it."""
    tuning = replace(found.space.options.tuning, algorithms=(algorithm,), protocols=(protocol,), channels=(channels,))
    try:
        made = price(ranked.program, found.bindings, found.machine, tuning)
    except InputError:
        return
    configs = [stage.config for stage in made.stages if stage.config is not None]
    if configs and all(config.channels == channels for config in configs):
        yield replace(ranked, price=made)


# Running.


def _compiled(
    found: Ranking, every: Sequence[Ranked], seconds: float, why: list[str], show: Show
) -> Iterator[_Candidate]:
    """Those that compile, in order, as many at once as there are cores, for up to `seconds`."""

    def make(ranked: Ranked) -> _Candidate | str:
        try:
            choices = tuple(stage_choices(ranked))
            lowered = lowered_as(ranked.program, found.bindings, choices, found.machine.nodes)
            return _Candidate(ranked, lowered, build(lowered, "process"))
        except (InputError, CheckFailed) as error:
            return str(error)

    several, end = max(1, os.cpu_count() or 1), time.monotonic() + seconds
    with ThreadPoolExecutor(several) as pool:
        for at in range(0, len(every), several):
            if at and time.monotonic() > end:
                return
            show(f"compiling {every[at].name}")
            for made in pool.map(make, every[at : at + several]):
                if isinstance(made, str):
                    why.append(made)
                else:
                    yield made


def _seconds(candidates: Sequence[_Candidate], repeats: int) -> list[Sequence[float]]:
    """Seconds of each run of each candidate, in processes that are started once for as many as fit in memory."""
    found: list[Sequence[float]] = []
    left = list(candidates)
    while left:
        tensors: dict[int, Tensors] = {}
        held = 0
        jobs: list[tuple[Compiled, Tensors]] = []
        try:
            while left:
                lowered, compiled = left[0].lowered, left[0].compiled
                size = compiled.ranks * sum(BYTES[each.dtype] * each.elements for each in lowered.buffers)
                key = hash(lowered.buffers)
                if key not in tensors:
                    if jobs and held + size > MOST_BYTES:
                        break
                    held += size
                    tensors[key] = Tensors(lowered.buffers, compiled.ranks, shared=True)
                    fill(tensors[key], range(compiled.ranks), lowered)
                jobs.append((compiled, tensors[key]))
                left.pop(0)
            found += [report.seconds for report in processes.run_each(jobs, Runs(repeats=repeats))]
        finally:
            for each in tensors.values():
                each.close()
    return found
