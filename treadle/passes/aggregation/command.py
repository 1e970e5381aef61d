"""`treadle plan aggregation`: groups of near hosts, and who adds up which chunk in and between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from treadle.cli.json_output import print_json
from treadle.cli.lazy import UsageError
from treadle.cli.options import Json, document_option, positive, size_option, whole
from treadle.cli.output import print_table
from treadle.planner.documents.scalars import format_bytes, format_time, many

if TYPE_CHECKING:
    from treadle.planner.documents.plan import Plan
    from treadle.planner.passes.aggregation.decisions import AggregationDecisions

MOST = 20
"""The most groups that are listed."""


def command(
    *,
    costs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="What was measured between the hosts, from `treadle profile measure --hosts`."
        ),
    ] = None,
    problem: Annotated[
        str | None, typer.Option(metavar="FILE", help="A problem written by hand, instead of measured costs.")
    ] = None,
    size: Annotated[int | None, size_option("--size", "Bytes that are summed, on every rank.", least=1)] = None,
    chunk_bytes: Annotated[
        int | None, size_option("--chunk-bytes", "The most bytes of a chunk. [default: 64 KiB]", least=1)
    ] = None,
    connections: Annotated[
        int | None, whole("Streams between two hosts, over which chunks are dealt out. [default: 1]", least=1, most=64)
    ] = None,
    groups: Annotated[
        int | None, whole("Groups of near hosts. [default: as many as are the clearest]", least=1)
    ] = None,
    levels: Annotated[
        int | None, whole("Levels of masters. [default: those that take less time]", least=1, most=2)
    ] = None,
    elasticity: Annotated[
        float, positive("How uneven groups may be: none is smaller than an even share divided by this.")
    ] = 2.0,
    repair: Annotated[
        Literal["max", "mean"] | None,
        typer.Option(help="What replaces the costs of two directions that differ. [default: they are refused]"),
    ] = None,
    seed: Annotated[int, whole("Of the embedding and the groups.", least=0)] = 0,
    output: Annotated[str, document_option("plan", "The plan to write.")],
    as_json: Json = False,
) -> None:
    """Plan an allreduce on hosts whose places are unknown: groups of near ones, and masters that add up each chunk.

    \b
      treadle plan aggregation --costs costs.json --size 64MiB -o plan.json

    Every chunk is added up by a local master in each group, then by one of these, and goes back over the same links, so
    that little crosses between groups. One level, where each chunk goes straight to its master, is taken if it is
    faster.
    """
    if (costs is None) == (problem is None):
        raise UsageError("give either --costs or --problem")
    if costs is not None and size is None:
        raise UsageError("--costs needs --size, the bytes that are summed")
    if problem is not None and (size or chunk_bytes or connections or repair):
        raise UsageError("--problem names its sizes and its costs, so it goes without options for them")

    from treadle.passes.aggregation.inputs import by_hand, from_costs
    from treadle.passes.aggregation.words import summary
    from treadle.planner.documents import store
    from treadle.planner.passes.aggregation.planning import AggregationOptions, plan_aggregation

    if costs is not None and size is not None:
        given, inputs = from_costs(costs, size, chunk_bytes or 65536, connections or 1, repair)
    else:
        given, inputs = by_hand(problem or "")
    options = AggregationOptions(
        levels=levels,  # type: ignore[arg-type]  # the option takes nothing else
        groups=groups,
        elasticity=elasticity,
        seed=seed,
    )
    plan = plan_aggregation(given, options=options, inputs=inputs)
    store.save(plan, output)
    if as_json:
        print_json("plan-aggregation", {**summary(plan), "plan": output})
    else:
        describe(plan)
        typer.echo(f"wrote {output}")


def describe(plan: Plan[AggregationDecisions]) -> None:
    """Print the figures of the plan, its groups, and what other schemes would take."""
    from treadle.passes.aggregation.words import group_names, links, named, why

    decisions, proof = plan.decisions, plan.certificate
    problem = decisions.problem
    slots = problem.hosts[0].slots
    ranks = f" of {many(slots, 'rank')}" if slots > 1 else ""
    sizes = f"{len(decisions.chunks)} of {format_bytes(decisions.chunks[0].bytes)}"
    sent = f"{format_bytes(decisions.total_bytes)} between hosts, {format_bytes(decisions.across_bytes)} between groups"
    verdict = "proved optimal" if proof.optimal else f"gap {proof.gap:.2%}"
    for name, text in (
        ("sum", f"{format_bytes(problem.size_bytes)} on {many(len(problem.hosts), 'host')}{ranks}, chunks {sizes}"),
        ("time", f"{format_time(decisions.time_ns)} predicted"),
        ("sent", sent),
        ("levels", why(decisions)),
        ("links", links(decisions)),
        ("found", plan.provenance.method),
        ("lower bound", f"{format_time(int(proof.lower_bound))}, {verdict}: {proof.argument}"),
    ):
        typer.echo(f"{name:<13}{text}")
    rows = [
        (f"{number}", f"{len(group)}", named(group_names(decisions, group)))
        for number, group in enumerate(decisions.near[:MOST])
    ]
    print_table("groups", ("group", "hosts", ""), rows)
    if (left := len(decisions.near) - MOST) > 0:
        typer.echo(f"and {many(left, 'group')} more")
    others = [
        (each.name, format_time(each.time_ns), format_bytes(each.across_bytes),
         f"{each.time_ns / max(1, decisions.time_ns):.2f}x")
        for each in decisions.rivals
    ]  # fmt: skip
    print_table("other schemes", ("scheme", "predicted", "between groups", "of the plan"), others)
