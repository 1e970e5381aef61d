"""`treadle plan ranks`: which host gets which ranks of a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from treadle.cli.json_output import print_json
from treadle.cli.lazy import UsageError
from treadle.cli.limit import clock_of, note_ending
from treadle.cli.options import Json, document_option, size_option, time_limit_option, whole
from treadle.cli.output import live_line
from treadle.cli.progress import ProgressLine
from treadle.planner.errors import InputError, LimitError

if TYPE_CHECKING:
    from treadle.passes.ranks.inputs import Given


def command(
    *,
    costs: Annotated[
        str | None, typer.Option(metavar="FILE", help="What was measured between the hosts: a cost matrix.")
    ] = None,
    problem: Annotated[
        str | None, typer.Option(metavar="FILE", help="A problem written by hand, instead of measured costs.")
    ] = None,
    collective: Annotated[
        str,
        typer.Option(
            metavar="<ring|halving-doubling|tree|double-tree|bcube|nccl-ring|nccl-tree|PLAN>",
            help="What the library does with its list of hosts, or the file of a collective plan.",
        ),
    ] = "ring",
    objective: Annotated[
        Literal["sum", "bottleneck", "bytes"],
        typer.Option(
            help="The cost model of the algorithm, its dearest hop, or the model with hops of latency times bytes."
        ),
    ] = "sum",
    size: Annotated[
        int | None,
        size_option("--size", "Bytes of the collective on every rank. [default: 64MiB where rates were measured]"),
    ] = None,
    factors: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Of bcube: hosts in a group by round, or one number as their base. [default: 4]"
        ),
    ] = None,
    repair: Annotated[
        Literal["max", "mean"] | None,
        typer.Option(help="What replaces two directions of a pair that differ; a missing one gets the other."),
    ] = None,
    seed: Annotated[int, whole("Of the search.", least=0)] = 0,
    time_limit: Annotated[
        float, time_limit_option("Seconds from the start of the command after which the best order so far is taken.")
    ] = 60.0,
    output: Annotated[str, document_option("plan", "The plan to write.")],
    as_json: Json = False,
) -> None:
    """Plan in which order hosts are handed to a collective library, so that it takes their cheap links.

    \b
      treadle plan ranks --costs costs.json --collective ring -o plan.json
      treadle plan ranks --costs costs.json --collective allreduce.plan.json -o plan.json

    The library stays as it is: `treadle generate` writes the list of hosts that its launcher reads.
    """
    if (costs is None) == (problem is None):
        raise UsageError("give either --costs or --problem")
    clock = clock_of(time_limit)

    from treadle.passes.ranks.words import described, summary
    from treadle.planner.documents import store
    from treadle.planner.passes.ranks.planning import RanksOptions, plan_ranks

    given, inputs = _given(costs, problem, collective, objective, size, factors, repair)
    try:
        with live_line() as show:
            plan = plan_ranks(
                given,
                options=RanksOptions(seed=seed),
                clock=clock,
                inputs=inputs,
                on_progress=ProgressLine(show, lambda: clock.elapsed_s),
                on_plan=lambda better: store.save(better, output),
            )
    except KeyboardInterrupt:
        raise LimitError("interrupted before an order was found") from None
    store.save(plan, output)
    note_ending(plan.provenance, time_limit)
    if as_json:
        print_json("plan-ranks", {**summary(plan), "plan": output})
        return
    for name, text in described(plan.decisions, plan.certificate):
        typer.echo(f"{name:<13}{text}")
    typer.echo(f"wrote {output}")


def _given(
    costs: str | None,
    problem: str | None,
    collective: str,
    objective: Literal["sum", "bottleneck", "bytes"],
    size: int | None,
    factors: str | None,
    repair: Literal["max", "mean"] | None,
) -> Given:
    from treadle.passes.ranks.inputs import by_hand, from_costs

    if costs is not None:
        return from_costs(
            costs,
            collective,
            objective=objective,
            size_bytes=size,
            factors=_factors(factors),
            repair=repair,
        )
    if size is not None or factors or repair or collective != "ring" or objective != "sum":
        raise UsageError("--problem names its collective, so it goes without options for that")
    return by_hand(problem or "")


def _factors(text: str | None) -> tuple[int, ...]:
    """Raises InputError for what is no list of whole numbers above 1."""
    words = [] if text is None else text.split(",")
    if not all(word.strip().isdecimal() and 1 < int(word) < 2**31 for word in words):
        raise InputError(f"found {text!r}, expected whole numbers above 1 such as 4,4,32", where="--factors")
    return tuple(map(int, words))
