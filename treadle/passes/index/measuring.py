"""Ranked by the evaluator, then measured: the trace subset on the real index, with the configurations that are
predicted to be best (MAPLE, "Overview")."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic, process_time

from msgspec.structs import replace

from treadle.passes.index.inputs import GivenWorkload
from treadle.planner.documents.index_model import IndexModel
from treadle.planner.errors import InputError, LimitError
from treadle.planner.passes.index.choosing import predictions
from treadle.planner.passes.index.configurations import grid
from treadle.planner.passes.index.evaluator import predicted_ns as evaluated
from treadle.planner.passes.index.operations import Workload
from treadle.planner.passes.index.problem import VERSION, IndexCandidate, IndexMeasurement, IndexProblem
from treadle.planner.search.clock import Clock
from treadle.planner.search.top import Outcome, measure_top

REPEATS = (3, 1)
"""Runs of each configuration, of which the median counts; one where there is no time for three."""
WINDOWS = 16
"""Equal parts of the trace subset whose times are recorded."""
LOAD_NS = 100.0
"""Bulk loading of a key, about: only to see beforehand whether the first measurement fits the limit."""
KEPT = 0.1
"""The share of the time limit that is kept for checking and writing the plan."""


def ranked_problem(given: GivenWorkload, subset: Workload, model: IndexModel) -> IndexProblem:
    """All configurations with what `model` predicts for `subset`, the first operations of the workload; none is
    measured."""
    configurations = grid()
    counts = subset.counts()
    return IndexProblem(
        version=VERSION,
        name=given.name,
        workload=given.source,
        bulk=len(subset.keys),
        **counts._asdict(),
        whole=len(given.workload.operations.ops),
        keys_at_end=subset.keys_at_end(),
        machine=model.machine,
        model=model.name,
        candidates=tuple(
            IndexCandidate(configuration=configuration, predicted_ns=predicted)
            for configuration, predicted in zip(configurations, evaluated(model, subset, configurations), strict=True)
        ),
        top=0,
    )


def measured_problem(
    problem: IndexProblem,
    subset: Workload,
    top: int,
    max_memory_ratio: float | None,
    clock: Clock,
    on_measured: Callable[[int, str], None],
) -> IndexProblem | None:
    """The same with the `top` best predicted configurations measured here, fewer where the time of `clock` or Ctrl-C
    ends it after the first; None where not even one would end in time.

    on_measured: called with the number and the name of each.
    """
    from treadle.probe.local import cpu_model
    from treadle.runtime.index.measure import loop_ns, measured

    candidates, problem = problem.candidates, replace(problem, max_memory_ratio=max_memory_ratio)
    choices = predictions(problem)
    run_s = _expected_s(min(each.ns for each in choices), problem.bulk, clock)
    repeats = next((each for each in REPEATS if _time_left(clock, each * run_s)), 0)
    if not repeats:
        return None
    found: dict[int, IndexMeasurement] = {}
    failed: dict[int, str] = {}
    longest_s = 0.0

    def measure(place: int) -> Outcome:
        nonlocal longest_s
        began = monotonic()
        one = candidates[place]
        try:
            run = measured(
                one.configuration, subset, windows=WINDOWS, repeats=repeats, insert_share=problem.insert_share
            )
        except LimitError as error:
            failed[place] = str(error)
            return Outcome(None, failed[place])
        longest_s = max(longest_s, monotonic() - began)
        found[place] = run
        on_measured(len(found), one.name)
        return Outcome(run.time_ns)

    with suppress(InputError):  # none runs here; the planner states why, and decides what may be taken
        measure_top("leaves", problem.model, choices, top, measure, lambda: not _time_left(clock, longest_s))
    return replace(
        problem,
        candidates=tuple(
            replace(each, measured=found.get(place), failed=failed.get(place)) for place, each in enumerate(candidates)
        ),
        top=top,
        cut_short=len(found) < min(top, len(candidates) - len(failed)),
        loop_ns=loop_ns(subset) if found else 0,
        machine=cpu_model(),
    )


def _expected_s(predicted_ns: float, bulk: int, clock: Clock) -> float:
    """About how long a run takes, where other processes slow it down as they did this one so far."""
    return (predicted_ns + LOAD_NS * bulk) / 1e9 * max(1.0, clock.elapsed_s / process_time())


def _time_left(clock: Clock, needed_s: float) -> bool:
    """Whether work of `needed_s` ends before the limit, and the plan is written by then."""
    return not clock.stop.is_set() and clock.left_s > needed_s + (KEPT * clock.whole_s if clock.limit_s else 0.0)
