"""`treadle plan server`: which core of which server handles each chunk of a model, and where the balance lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.json_output import print_json
from treadle.cli.lazy import UsageError
from treadle.cli.limit import clock_of, note_ending
from treadle.cli.options import (
    Json,
    Nodes,
    document_option,
    hardware_option,
    positive,
    size_option,
    time_limit_option,
    whole,
    written,
)
from treadle.cli.output import note, print_table
from treadle.planner.documents.scalars import format_time
from treadle.planner.documents.server_parts import Carrier
from treadle.planner.passes.server.decisions import Levels, Policy
from treadle.planner.passes.server.problem import (
    LEAST_CHUNK,
    MOST_WORKERS,
    Aggregator,
    Engine,
    Mode,
    OptimizerName,
)

if TYPE_CHECKING:
    from treadle.planner.documents.plan import Plan
    from treadle.planner.passes.server.advice import Advice
    from treadle.planner.passes.server.decisions import ServerDecisions
    from treadle.planner.passes.server.what_if import WhatIf, WhatIfAnswer


def command(
    *,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="The training step, from `treadle trace capture --train`.")
    ] = None,
    keys: Annotated[
        str | None, typer.Option(metavar="FILE", help="Parameters written by hand, instead of a trace.")
    ] = None,
    problem: Annotated[
        str | None, typer.Option(metavar="FILE", help="A whole problem written by hand, with machine and workers.")
    ] = None,
    hardware: Annotated[
        str | None, hardware_option("The cluster, whose nodes are the workers; a server is such a node.")
    ] = None,
    nodes: Nodes = None,
    parts: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="The parts of a server, from `treadle profile measure --server` or by hand."
        ),
    ] = None,
    workers: Annotated[
        int | None, whole("Number of workers. [default: nodes of the hardware]", least=1, most=MOST_WORKERS)
    ] = None,
    mode: Annotated[
        Mode,
        typer.Option(help="On a worker's machine (c) or not (nc), one server (c) or shards on several (s)."),
    ] = "ncc",
    shards: Annotated[int | None, whole("Servers in mode ncs. [default: one for each worker]", least=1)] = None,
    carrier: Annotated[
        Carrier | None,
        typer.Option(help="How chunks reach a server. [default: the first whose costs the parts state, or tcp]"),
    ] = None,
    optimizer: Annotated[
        OptimizerName,
        typer.Option(help="What servers do with the mean gradient; mean sends it back."),
    ] = "sgd",
    asynchronous: Annotated[
        bool, typer.Option("--asynchronous", help="Each gradient is applied as it comes, without the others'.")
    ] = False,
    arrival_order: Annotated[
        bool, typer.Option("--arrival-order", help="Gradients are added as they arrive, so that sums may differ.")
    ] = False,
    policy: Annotated[
        Policy | None,
        typer.Option(help="Whether chunks have an interface, or workers do. [default: the faster]"),
    ] = None,
    engine: Annotated[Engine, typer.Option(help="Each core its own chunks, or all cores one key at a time.")] = "tall",
    aggregator: Annotated[Aggregator, typer.Option(help="Whether sums go through the caches or past them.")] = "cached",
    chunk: Annotated[
        int | None, size_option("--chunk", "Size of a chunk. [default: the fastest]", least=LEAST_CHUNK)
    ] = None,
    cores: Annotated[int, whole("Cores for each interface.", least=1)] = 1,
    racks: Annotated[
        int | None, whole("Racks, each with a server. [default: those with uplinks in the hardware, or 1]", least=1)
    ] = None,
    rack_gbps: Annotated[float | None, positive("Gbit/s of a rack's link to the others.")] = None,
    levels: Annotated[
        Levels | None,
        typer.Option(help="With racks: servers are shards of all, or sums stay in a rack first. [default: the faster]"),
    ] = None,
    shared_cores: Annotated[
        int | None, whole("Cores that servers and workers share where all of them run on one machine.", least=1)
    ] = None,
    prices: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="What machines and networks cost, to compare throughput.")
    ] = None,
    what_if: Annotated[
        str | None,
        typer.Option(
            metavar="PART=VALUES",
            help="Also plan with other amounts, such as interfaces=4..10 or chunk=4K..4M; of interfaces, cores, memory "
            "and bridge (GB/s), workers or chunk.",
        ),
    ] = None,
    draw: Annotated[
        str | None, written("--draw", kind="picture", help="With --what-if: the picture to write.", endings=(".svg",))
    ] = None,
    time_limit: Annotated[
        float, time_limit_option("Seconds from the start of the command after which the best plan so far is taken.")
    ] = 60.0,
    output: Annotated[str, document_option("plan", "The plan to write.")],
    as_json: Json = False,
) -> None:
    """Plan a parameter server: chunks of a model on cores of servers, and the balance of all their parts.

    \b
      treadle plan server --keys keys.yaml --parts pbox --workers 8 -o plan.json
      treadle plan server --trace step.json --parts pbox --workers 8 --what-if interfaces=4..10 -o plan.json

    Every chunk is handled by one core, which receives, adds, optimizes and sends it. The plan states what each part
    carries, which one is the bottleneck, what is left of the others, and what would make it faster. docs/server.md has
    all of it.
    """
    from treadle.planner.passes.server.extract import DEFAULTS, ServerSetup

    setup = ServerSetup(
        workers=workers,
        mode=mode,
        shards=shards,
        carrier=carrier,
        optimizer=optimizer,
        synchronous=not asynchronous,
        arrival_order=arrival_order,
        cores_per_interface=cores,
        shared_cores=shared_cores,
        racks=racks,
        rack_gbps=rack_gbps,
    )
    if sum(given is not None for given in (trace, keys, problem)) != 1:
        raise UsageError("give one of --trace, --keys and --problem")
    if problem is not None and (hardware or nodes or parts or prices or setup != DEFAULTS):
        raise UsageError("--problem names its machine and its workers, so it goes without options for them")
    if problem is None and hardware is None and parts is None:
        raise UsageError("--trace and --keys need --parts or --hardware, for the parts of a server")
    if shards is not None and mode != "ncs":
        raise UsageError("--shards belongs to --mode ncs")
    if draw is not None and what_if is None:
        raise UsageError("--draw belongs to --what-if")
    clock = clock_of(time_limit)

    from treadle.passes.server.inputs import by_hand, from_model
    from treadle.passes.server.words import summary
    from treadle.planner.documents import store
    from treadle.planner.passes.server.advice import advice
    from treadle.planner.passes.server.decided import ServerOptions
    from treadle.planner.passes.server.extract import unmeasured
    from treadle.planner.passes.server.planning import plan_server
    from treadle.planner.passes.server.what_if import answers_to, question_of

    asked = None if what_if is None else question_of(what_if)
    if problem is not None:
        given, inputs = by_hand(problem)
    else:
        given, inputs = from_model(trace, keys, parts, hardware, nodes, prices, setup)
    options = ServerOptions(policy=policy, engine=engine, aggregator=aggregator, chunk_bytes=chunk, levels=levels)
    plan = plan_server(given, options=options, clock=clock, inputs=inputs)
    store.save(plan, output)
    note_ending(plan.provenance, time_limit)
    for line in unmeasured(given):
        note(line)
    advised = advice(plan.decisions, clock.over)
    answers = () if asked is None else answers_to(asked, given, options, clock.over, note)
    if clock.late() and asked is not None:
        note(f"the time limit of {time_limit:g} s ended the search for answers")
    drawn = draw if answers else None
    if drawn is not None and asked is not None:
        from treadle.passes.server.what_if_figure import what_if_svg

        Path(drawn).write_text(what_if_svg(asked, answers), encoding="utf-8")
    if as_json:
        facts = summary(plan, advised)
        if asked is not None:
            facts["what_if"] = [
                {asked.name: each.value, "exchanges_per_s": each.exchanges_per_s, "time_ns": each.decisions.time_ns}
                for each in answers
            ]
        print_json("plan-server", {**facts, "plan": output})
        return
    describe(plan, advised, clock.over)
    if asked is not None:
        describe_answers(asked, answers)
    typer.echo(f"wrote {output}" if drawn is None else f"wrote {output} and {drawn}")


def describe(plan: Plan[ServerDecisions], advised: tuple[Advice, ...], over: Callable[[], bool]) -> None:
    """Print the figures of the plan, the balance of its parts, how even its levels are, and the advice; nothing is
    searched for once it is `over`."""
    from treadle.passes.server.words import POLICIES, level_row, limit_row, lines, policy_rates, rate_text
    from treadle.planner.passes.server.balance import limits

    decisions = plan.decisions
    for name, text in lines(plan):
        typer.echo(f"{name:<13}{text}")
    if decisions.problem.carrier != "shared":
        rates = policy_rates(decisions, over).items()
        typer.echo(f"{'maps':<13}" + "; ".join(f"{POLICIES[name]} {rate_text(rate)}" for name, rate in rates))
    print_table(
        "balance",
        ("kind", "slowest", "load", "rate", "time", "exchanges/s", "headroom"),
        [limit_row(each) for each in limits(decisions)],
    )
    print_table(
        "levels",
        ("level", "bins", "fullest", "times mean", "guarantee", ""),
        [level_row(each, decisions.problem.machine) for each in decisions.levels if each.bins > 1],
    )
    rows = [(each.change, format_time(each.time_ns), f"{each.gain:.2f}x") for each in advised]
    print_table("what would be faster", ("change", "exchange", "gain"), rows)


def describe_answers(asked: WhatIf, answers: tuple[WhatIfAnswer, ...]) -> None:
    """Print what each amount leads to."""
    from treadle.passes.server.words import answer_row

    head = (asked.name, "exchanges/s", "exchange", "bottleneck", "next")
    print_table(f"with other {asked.name}", head, [answer_row(asked, each) for each in answers])
