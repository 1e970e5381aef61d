"""Times of the most promising schedules of a program, on this machine, with one process for each rank.

First the schedules of least predicted time, each on what it was priced with, which is what `treadle generate` makes of
it. Then an inner search for the fastest of them: every algorithm with every protocol, on the channels that are
predicted to be best, and for the fastest of those other numbers of channels (CoCoNet, section 5.2). The best predicted
are measured each time; the slower half is given up after each round.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product

from treadle.codegen.fusion.generate import lowered_as
from treadle.codegen.fusion.lower import Lowered
from treadle.planner.documents.scalars import many
from treadle.planner.documents.tuned import Tuned
from treadle.planner.errors import CheckFailed, InputError, LimitError
from treadle.planner.machine.collectives import Algorithm
from treadle.planner.machine.dtypes import BYTES
from treadle.planner.passes.fusion.explanations import stage_choices
from treadle.planner.passes.fusion.price import price
from treadle.planner.passes.fusion.ranking import Ranked, Ranking, rank
from treadle.planner.search.clock import Clock
from treadle.planner.search.top import Outcome, Predicted, by_prediction, recorded
from treadle.planner.solver.interrupt import raised_at_once
from treadle.runtime.fusion import processes
from treadle.runtime.fusion.build import Compiled, build
from treadle.runtime.fusion.data import fill
from treadle.runtime.fusion.measure import Timed, halving
from treadle.runtime.fusion.runs import Runs
from treadle.runtime.fusion.tensors import Tensors
from treadle.runtime.trial_ranks import require_few

TUNED = 2
"""Schedules whose algorithm, protocol and channels are searched for."""
MOST_BYTES = 1 << 30
"""Memory of the tensors that are allocated at once."""
REPEATS = 3
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "all-pairs", "hierarchical")
PROTOCOLS = ("Simple", "LL", "LL128")
CHANNELS = (1, 2, 4)
AS_PRICED = "as priced"

Show = Callable[[str], None]


@dataclass(frozen=True)
class _Candidate:
    name: str
    ranked: Ranked
    lowered: Lowered
    compiled: Compiled


def measured(
    found: Ranking, top: int, show: Show = lambda _: None, clock: Clock | None = None
) -> tuple[Ranking, tuple[Tuned, ...]]:
    """The ranking with the fastest schedule first, on its fastest choice of algorithm, protocol and channels, and what
    was measured of both: of each the `top` of least predicted time that run here. All of them multiply with our own
    kernels, and the plan too. `found` as it was where Ctrl-C comes before anything was measured.

    Once `clock` has run out nothing more is compiled; the first schedule always is. Raises InputError for too many
    ranks, or where nothing can be run; MissingBackendError without g++.
    """
    ranks = found.bindings.ranks * found.bindings.groups
    require_few(ranks)
    clock = clock or Clock()
    machine, predicted = found.machine.without_library, found
    found = replace(found, machine=machine, ranked=rank(found.space, found.bindings, machine, clock.over))
    measuring = _Measuring(found, top, show, clock)
    schedules: dict[str, Ranked] = {}
    for ranked in found.ranked:
        schedules.setdefault(ranked.name, ranked)
    outcomes, times = measuring.outcomes(schedules)
    if not times and clock.stop.is_set():
        return predicted, ()
    best = {each.candidate.name: each for each in times}
    settings: dict[str, list[Tuned]] = {}
    for each in times[:TUNED]:
        if not clock.over():
            name = each.candidate.name
            best[name], settings[name] = measuring.settings(each)
    for name, each in best.items():
        outcomes[name] = _outcome(each)
    tuned = measuring.record("schedule", schedules, outcomes)
    taken = replace(schedules[tuned.chosen], price=best[tuned.chosen].candidate.ranked.price)
    others = (of for of in found.ranked if of is not schedules[tuned.chosen])
    found = replace(found, ranked=(taken, *others), limit_fired=found.limit_fired or clock.late())
    return found, (tuned, *settings.get(tuned.chosen, ()))


@dataclass(frozen=True)
class _Measuring:
    found: Ranking
    top: int
    show: Show
    clock: Clock

    def record(self, what: str, choices: Mapping[str, Ranked], outcomes: Mapping[str, Outcome]) -> Tuned:
        places = {name: place for place, name in enumerate(choices)}
        by_place = {places[name]: outcome for name, outcome in outcomes.items()}
        return recorded(what, f"prices of fusion on {self.found.machine.name}", _predicted(choices), self.top, by_place)

    def settings(self, schedule: Timed[_Candidate]) -> tuple[Timed[_Candidate], list[Tuned]]:
        """A schedule on its fastest choice for its collectives, if it has any, and what was measured to find it."""
        fastest, name, records = schedule, AS_PRICED, list[Tuned]()
        for what, others in (("algorithm and protocol", _pairs), ("channels", _channels)):
            known = fastest.candidate.ranked
            new = {other: of for other, of in others(self.found, known) if of.price != known.price}
            if not new or self.clock.over():
                break
            outcomes, times = self.outcomes({name: known, **new}, exact=new)
            if not times:
                break
            records.append(self.record(what, {name: known, **new}, outcomes))
            fastest, name = times[0], times[0].candidate.name
        return fastest, records

    def outcomes(
        self, choices: Mapping[str, Ranked], exact: Container[str] = ()
    ) -> tuple[dict[str, Outcome], list[Timed[_Candidate]]]:
        """What the best predicted of `choices` take, by name and the fastest first. Those of `exact` run only where
        kernels carry their collectives just so."""
        made = dict(self._compiled(choices, exact))
        outcomes = {name: Outcome(None, why) for name, why in made.items() if isinstance(why, str)}
        candidates = [each for each in made.values() if not isinstance(each, str)]

        def run(few: Sequence[_Candidate], repeats: int) -> Sequence[Sequence[float]]:
            self.show(f"running {len(few)} of {len(candidates)}, {repeats} times each")
            return _seconds(few, repeats)

        times = sorted(halving(candidates, run, repeats=REPEATS), key=lambda each: each.seconds)
        return outcomes | {each.candidate.name: _outcome(each) for each in times}, times

    def _compiled(self, choices: Mapping[str, Ranked], exact: Container[str]) -> Iterator[tuple[str, _Candidate | str]]:
        """The best predicted by name until `top` compile, as many at once as there are cores, or why one does not. Of
        a limit a third is for this: what is compiled still runs."""

        def lower(name: str) -> Lowered | str:
            ranked = choices[name]
            try:
                stages = tuple(stage_choices(ranked))
                lowered = lowered_as(ranked.program, self.found.bindings, stages, self.found.machine.nodes)
            except (InputError, CheckFailed) as error:
                return str(error)
            return "no kernel carries it" if name in exact and lowered.changed else lowered

        def compiled(lowered: Lowered | str) -> Compiled | str:
            if isinstance(lowered, str):
                return lowered
            try:
                return build(lowered, "process")
            except (InputError, CheckFailed, LimitError) as error:
                if isinstance(error, LimitError) and not self.clock.stop.is_set():
                    raise
                return str(error)

        ordered = [list(choices)[place] for place in by_prediction(_predicted(choices))]
        several, ran, clock = max(1, os.cpu_count() or 1), 0, self.clock.share(3)
        with ThreadPoolExecutor(several) as pool:
            while ordered and ran < self.top and not (ran and clock.over()):
                few = ordered[: min(several, self.top - ran)]
                del ordered[: len(few)]
                self.show(f"compiling {few[0]}")
                # Not in the pool: this reads plans, and msgspec crashes where two threads read a type at first.
                texts = [lower(name) for name in few]
                for name, lowered, made in zip(few, texts, pool.map(compiled, texts), strict=True):
                    if isinstance(lowered, str) or isinstance(made, str):
                        if self.clock.stop.is_set():
                            return  # Ctrl-C ends the compiler too, which says nothing of the choice
                        yield name, str(made)
                    else:
                        ran += 1
                        yield name, _Candidate(name, choices[name], lowered, made)


def _outcome(timed: Timed[_Candidate]) -> Outcome:
    return Outcome(max(1, round(timed.seconds * 1e9)))


def _predicted(choices: Mapping[str, Ranked]) -> list[Predicted]:
    return [Predicted(name, of.time_ns) for name, of in choices.items()]


def _pairs(found: Ranking, ranked: Ranked) -> Iterator[tuple[str, Ranked]]:
    """A schedule on every algorithm and protocol, on the channels of least predicted time."""
    for algorithm, protocol in product(ALGORITHMS, PROTOCOLS):
        tried = [one for channels in CHANNELS for one in _on(found, ranked, algorithm, protocol, channels)]
        if tried:
            yield min(tried, key=lambda one: one[1].time_ns)


def _channels(found: Ranking, ranked: Ranked) -> Iterator[tuple[str, Ranked]]:
    """A schedule on other numbers of channels."""
    config = next((stage.config for stage in ranked.price.stages if stage.config is not None), None)
    if config is not None:
        for channels in CHANNELS:
            yield from _on(found, ranked, config.algorithm, config.protocol, channels)


def _on(
    found: Ranking, ranked: Ranked, algorithm: Algorithm, protocol: str, channels: int
) -> Iterator[tuple[str, Ranked]]:
    """The schedule with all its collectives on this choice and priced so; nothing where the machine lacks it."""
    tuning = replace(found.space.options.tuning, algorithms=(algorithm,), protocols=(protocol,), channels=(channels,))
    try:
        made = price(ranked.program, found.bindings, found.machine, tuning)
    except InputError:
        return
    configs = [stage.config for stage in made.stages if stage.config is not None]
    if configs and all(config.channels == channels for config in configs):
        yield f"{algorithm}, {protocol}, {many(channels, 'channel')}", replace(ranked, price=made)


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
            with raised_at_once():
                reports = processes.run_each(jobs, Runs(repeats=repeats))
            found += [report.seconds for report in reports]
        finally:
            for each in tensors.values():
                each.close()
    return found
