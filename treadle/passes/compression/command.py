"""`treadle plan compression`: which gradients are compressed, where, in which groups, and when none is."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from treadle.cli.json_output import print_json
from treadle.cli.lazy import UsageError
from treadle.cli.limit import clock_of, note_ending
from treadle.cli.options import (
    Json,
    Nodes,
    Top,
    document_option,
    hardware_option,
    measure_option,
    time_limit_option,
    top_of,
)
from treadle.cli.output import live_line, note, print_table
from treadle.cli.progress import ProgressLine
from treadle.cli.tuned_lines import note_unmeasured, print_tuned, tuned_facts
from treadle.planner.documents.scalars import format_time, many

if TYPE_CHECKING:
    from treadle.planner.documents.plan import Plan
    from treadle.planner.passes.compression.decisions import CompressionDecisions


def command(
    *,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="The training step, from `treadle trace capture --train`.")
    ] = None,
    problem: Annotated[
        str | None, typer.Option(metavar="FILE", help="A compression problem written by hand, instead of a trace.")
    ] = None,
    hardware: Annotated[str | None, hardware_option("The machine, whose devices are the ranks.")] = None,
    nodes: Nodes = None,
    compressor: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A candidate, such as dgc:0.01, efsignsgd or powersgd:4; may be repeated."),
    ] = None,
    costs: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="What compressors cost, from `treadle profile measure --compression`. "
            "[default: shipped ones for the kind of device]",
        ),
    ] = None,
    collectives: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A selection of planned allreduces, which may send what stays dense."),
    ] = None,
    method: Annotated[
        Literal["joint", "espresso", "cupcake"],
        typer.Option(
            help="Groups and options together, options of each gradient (Espresso), or groups of one option (Cupcake).",
        ),
    ] = "joint",
    as_published: Annotated[
        bool, typer.Option("--as-published", help="With espresso or cupcake: the algorithm of the paper, nothing else.")
    ] = False,
    no_bubble_pruning: Annotated[
        bool,
        typer.Option(
            "--no-bubble-pruning", help="With espresso: also consider gradients that are sent before the links idle."
        ),
    ] = False,
    measure: Annotated[
        bool,
        measure_option(
            "Time the best predicted plans here, with a process for each rank, and take the fastest. Searches for 60% "
            "of the time limit."
        ),
    ] = False,
    top: Top = None,
    time_limit: Annotated[
        float, time_limit_option("Seconds from the start of the command after which the best plan so far is taken.")
    ] = 60.0,
    output: Annotated[str, document_option("plan", "The plan to write.")],
    as_json: Json = False,
) -> None:
    """Plan which gradients of data-parallel training are compressed, where, in which groups, and when none is.

    \b
      treadle plan compression --trace step.json --hardware cluster-10gbe --compressor dgc:0.01 -o plan.json
      treadle plan compression --problem problem.yaml -o plan.json

    An encoding takes time from the backward pass or from the host; it pays only where links would be busy for longer
    when nothing else is left to do. The plan says what it saves, or that nothing should be compressed.
    docs/compression.md has all of it.
    """
    if (trace is None) == (problem is None):
        raise UsageError("give either --trace or --problem")
    if trace is not None and (hardware is None or not compressor):
        raise UsageError("--trace needs --hardware, for the links, and at least one --compressor")
    if problem is not None and (hardware or nodes or compressor or costs or collectives):
        raise UsageError("--problem names its machine and its compressors, so it goes without options for them")
    if as_published and method == "joint":
        raise UsageError("--as-published belongs to --method espresso or cupcake")
    if no_bubble_pruning and method != "espresso":
        raise UsageError("--no-bubble-pruning belongs to --method espresso")
    count = top_of(measure, top)
    if measure and as_published:
        raise UsageError("--as-published is the plan of a paper, which measures none, so it goes without --measure")
    if measure and collectives:
        raise UsageError("--measure runs no planned allreduce, so it goes without --collectives")
    clock = clock_of(time_limit)

    from treadle.passes.compression.inputs import by_hand, from_trace
    from treadle.planner.documents import store
    from treadle.planner.errors import LimitError
    from treadle.planner.passes.compression.planning import CompressionOptions, plan_compression

    if trace is not None and hardware is not None:
        given, inputs = from_trace(trace, hardware, nodes, costs, compressor or (), collectives)
    else:
        given, inputs = by_hand(problem or "")
    if count:
        from treadle.runtime.compression.trials import compression_measuring
        from treadle.runtime.trial_ranks import priced_here

        machine = priced_here(given.ranks, given.name, hardware, nodes)
    try:
        with (
            live_line() as show,
            compression_measuring(given, count, machine, clock, show) if count else nullcontext() as measuring,
        ):
            if count and measuring is None:  # another rank than the first
                return
            plan = plan_compression(
                given,
                options=CompressionOptions(
                    method=method,
                    as_published=as_published,
                    time_limit_s=time_limit,
                    bubble_pruning=not no_bubble_pruning,
                    measuring=measuring,
                ),
                clock=clock,
                inputs=inputs,
                on_progress=ProgressLine(show, lambda: clock.elapsed_s),
                on_plan=lambda better: store.save(better, output),
            )
    except KeyboardInterrupt:
        raise LimitError("interrupted before a plan was found") from None
    store.save(plan, output)
    note_ending(plan.provenance, time_limit)
    if measure:
        note_unmeasured(plan)
    if missing := [name for name, each in plan.decisions.algorithms.items() if each is None]:
        note(f"treadle does not have {' and '.join(missing)}: the plan can be simulated, not run")
    facts = summary(plan)
    if as_json:
        print_json("plan-compression", {**facts, "tuned": tuned_facts(plan), "plan": output})
    else:
        describe(plan, facts)
        print_tuned(plan)
        typer.echo(f"wrote {output}")


def summary(plan: Plan[CompressionDecisions]) -> dict[str, Any]:
    """The figures that people ask for first."""
    from treadle.passes.compression.words import compressed, exposed_ns, reason

    decisions, proof = plan.decisions, plan.certificate
    problem, found = decisions.problem, compressed(decisions)
    elements = sum(gradient.elements for gradient in problem.gradients)
    return {
        "machines": problem.machines,
        "devices": problem.devices,
        "gradients": len(problem.gradients),
        "groups": len(decisions.groups),
        "compressed_gradients": found.gradients,
        "compressed_share": found.elements / elements,
        "compressed_groups": found.groups,
        "reason": None if found.groups else reason(plan),
        "time_ns": decisions.time_ns,
        "uncompressed_ns": decisions.uncompressed_ns,
        "operators_ns": problem.forward_ns + problem.backward_ns,
        "exposed_ns": exposed_ns(problem, decisions.time_ns),
        "sent_bytes": decisions.sent_bytes,
        "rivals_ns": {rival.name: rival.time_ns for rival in decisions.rivals},
        "rivals_cut": [rival.name for rival in decisions.rivals if rival.cut],
        "lower_bound_ns": int(proof.lower_bound),
        "gap": proof.gap,
        "optimal": proof.optimal,
        "bound_argument": proof.argument,
        "method": plan.provenance.method,
        "limit_fired": plan.provenance.limit_fired,
        "interrupted": plan.provenance.interrupted,
    }


def describe(plan: Plan[CompressionDecisions], facts: dict[str, Any]) -> None:
    """Print the summary as a few aligned lines, and the rivals."""
    from treadle.passes.compression.words import name_of, percent, sent

    rivals = plan.decisions.rivals
    time, plain = facts["time_ns"], facts["uncompressed_ns"]
    ranks = f"{many(facts['machines'], 'node')} of {many(facts['devices'], 'rank')}"
    gradients, groups = many(facts["gradients"], "gradient"), many(facts["groups"], "group")
    if facts["compressed_groups"]:
        used = ", ".join(f"{name} for {many(count, 'group')}" for name, count in facts["compressed_groups"].items())
        share = percent(facts["compressed_share"])
        what = f"{facts['compressed_gradients']} of {gradients} ({share} of the bytes): {used}"
    else:
        what = f"nothing: {facts['reason']}"
    faster = f"{plain / max(1, time):.2f}x"
    proof = "proved optimal" if facts["optimal"] else f"gap {facts['gap']:.2%}"
    rows = [
        ("compress", what),
        ("groups", f"{groups} of {gradients}, exchanged by {ranks}"),
        ("iteration", f"{format_time(time)} predicted, {format_time(plain)} uncompressed ({faster})"),
        ("exchange", f"adds {format_time(facts['exposed_ns'])} to {format_time(facts['operators_ns'])} of operators; a "
                     f"rank sends {sent(plan.decisions)}"),
        ("lower bound", f"{format_time(facts['lower_bound_ns'])}, {proof}: {facts['bound_argument']}"),
        ("found by", facts["method"]),
    ]  # fmt: skip
    for name, text in rows:
        typer.echo(f"{name:<13}{text}")
    if rivals:
        print_table(
            "compared with",
            ("choice", "iteration", "times"),
            [(name_of(each), format_time(each.time_ns), f"{each.time_ns / max(1, time):.2f}") for each in rivals],
        )
