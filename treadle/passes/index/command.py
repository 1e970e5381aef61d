"""`treadle plan index`: which leaves a learned index gets, ranked by a model and then measured on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from msgspec.structs import replace

from treadle.cli.completion import shipped
from treadle.cli.json_output import print_json
from treadle.cli.lazy import UsageError
from treadle.cli.limit import clock_of, note_ending
from treadle.cli.options import MOST_TOP, Json, document_option, positive, time_limit_option, whole
from treadle.cli.output import live_line, print_table
from treadle.cli.tuned_lines import note_unmeasured

if TYPE_CHECKING:
    from treadle.passes.index.inputs import GivenWorkload
    from treadle.planner.documents.plan import Plan
    from treadle.planner.passes.index.decisions import IndexDecisions
    from treadle.planner.search.clock import Clock

TOP, SAMPLE = 10, 1_000_000
MOST_RATIO = 1e9


def command(
    *,
    workload: Annotated[
        str | None, typer.Argument(metavar="WORKLOAD", help="A workload to draw: a family of keys and their use.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="OPS", help="Operations in their order, as text or .npy; with --data.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="KEYS", help="The keys that are loaded first, of SOSD or .npy; with --trace.")
    ] = None,
    problem: Annotated[
        str | None, typer.Option(metavar="FILE", help="A whole problem, with predictions and measurements.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=shipped("profiles/index"),
            help="The evaluator, from `treadle profile measure --index`. [default: the shipped one]",
        ),
    ] = None,
    top: Annotated[
        int | None,
        whole(
            f"How many of the best predicted are measured; 0 trusts the model. [default: {TOP}]", least=0, most=MOST_TOP
        ),
    ] = None,
    max_memory_ratio: Annotated[
        float | None,
        positive("Most bytes of the index for each byte of its keys and payloads.", most=MOST_RATIO),
    ] = None,
    sample: Annotated[
        int | None, whole(f"Operations that are ranked and measured, the first ones. [default: {SAMPLE}]", least=1)
    ] = None,
    time_limit: Annotated[
        float, time_limit_option("Seconds from the start of the command after which nothing more is measured.")
    ] = 60.0,
    output: Annotated[str, document_option("plan", "The plan to write.")],
    as_json: Json = False,
) -> None:
    """Choose the leaves of a learned index of 64-bit keys for a workload.

    \b
      treadle plan index workload.yaml -o plan.json
      treadle plan index --data books.npy --trace operations.txt --max-memory-ratio 1.5 -o plan.json

    A model ranks all configurations by a picture of the first operations; the best ones run these operations on this
    machine, and the fastest is taken. The plan states what was predicted and measured, and what the second best loses.
    Measuring needs g++. docs/learned-index.md has all of it.
    """
    if [workload, trace or data, problem].count(None) != 2:
        raise UsageError("give one of WORKLOAD, --trace with --data, and --problem")
    if (trace is None) != (data is None):
        raise UsageError("--trace and --data go together: operations, and the keys that are loaded before them")
    if problem is not None and (model, top, max_memory_ratio, sample) != (None, None, None, None):
        raise UsageError("--problem has its predictions and measurements, so it goes without options for them")
    if top == 0 and max_memory_ratio is not None:
        raise UsageError("--max-memory-ratio needs measurements, so --top of 1 or more")
    clock = clock_of(time_limit)

    from treadle.passes.index.words import summary
    from treadle.planner.documents import store

    if problem is not None:
        plan = _by_hand(problem, clock)
    else:
        wanted = _Wanted(model, TOP if top is None else top, max_memory_ratio, sample or SAMPLE)
        plan = _measured(_given(workload, trace, data), wanted, clock, output)
    store.save(plan, output)
    note_ending(plan.provenance, time_limit)
    if problem is None and top != 0:
        note_unmeasured(plan)
    if as_json:
        print_json("plan-index", {**summary(plan), "plan": output})
        return
    describe(plan)
    typer.echo(f"wrote {output}")


class _Wanted(NamedTuple):
    model: str | None
    top: int
    max_memory_ratio: float | None
    sample: int


def _by_hand(file: str, clock: Clock) -> Plan[IndexDecisions]:
    """A plan of predictions and measurements that a file has."""
    from pathlib import Path

    from treadle.planner.documents import store
    from treadle.planner.documents.plan import InputRef
    from treadle.planner.passes.index.planning import plan_index
    from treadle.planner.passes.index.problem import IndexProblem

    problem = store.load(file, IndexProblem)
    inputs = {"problem": InputRef(file=Path(file).name, digest=store.digest(problem))}
    return plan_index(problem, clock=clock, inputs=inputs)


def _given(workload: str | None, trace: str | None, data: str | None) -> GivenWorkload:
    from treadle.passes.index.inputs import drawn_from, read_from

    return drawn_from(workload) if workload is not None else read_from(data or "", trace or "")


def _measured(given: GivenWorkload, wanted: _Wanted, clock: Clock, output: str) -> Plan[IndexDecisions]:
    """Rank, write a plan that trusts the predictions, measure. Raises LimitError where no time is left to measure one
    configuration and memory is limited."""
    from treadle.passes.index.inputs import evaluator
    from treadle.passes.index.measuring import measured_problem, ranked_problem
    from treadle.planner.documents import store
    from treadle.planner.errors import LimitError
    from treadle.planner.passes.index.planning import plan_index

    subset = given.workload.first(wanted.sample)
    model, reference = evaluator(wanted.model)
    inputs = {**given.inputs, "model": reference}
    problem = ranked_problem(given, subset, model)
    trusting = plan_index(problem, clock=clock, inputs=inputs)
    if not wanted.top:
        return trusting
    if wanted.max_memory_ratio is None:
        store.save(trusting, output)
    with clock.listening(), live_line() as show:

        def on_measured(number: int, name: str) -> None:
            show(f"measured {number} of {wanted.top}: {name}")

        found = measured_problem(problem, subset, wanted.top, wanted.max_memory_ratio, clock, on_measured)
        if found is not None:
            return plan_index(found, clock=clock, inputs=inputs)
    if wanted.max_memory_ratio is not None:
        raise LimitError("no time was left to measure the memory of any configuration")
    return replace(
        trusting,
        provenance=replace(trusting.provenance, limit_fired=not clock.stop.is_set(), interrupted=clock.stop.is_set()),
    )


def describe(plan: Plan[IndexDecisions]) -> None:
    """Print the plan as a few aligned lines, and the measured configurations."""
    from treadle.passes.index.words import MEASURED_HEAD, lines, measured_rows

    for name, text in lines(plan):
        typer.echo(f"{name:<13}{text}")
    print_table("measured on one core", MEASURED_HEAD, measured_rows(plan.decisions))
