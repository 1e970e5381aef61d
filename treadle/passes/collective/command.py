"""`treadle plan collective`: from hardware, sketch and size to a checked schedule of chunks on links."""

from __future__ import annotations

import re
import textwrap
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from treadle.cli.completion import methods, sketches
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
    size_option,
    time_limit_option,
    top_of,
    whole,
)
from treadle.cli.output import live_line, note, print_table, require_same
from treadle.cli.progress import ProgressLine
from treadle.cli.tuned_lines import note_unmeasured, print_tuned, tuned_facts
from treadle.planner.documents import store
from treadle.planner.documents.collective import Collective
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.overwrite import require_replaceable
from treadle.planner.documents.pattern import Pattern
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.probe.resolve import load_hardware, load_sketch


def command(
    *,
    collective: Annotated[Collective, typer.Argument(metavar="COLLECTIVE", help="What the ranks exchange.")],
    hardware: Annotated[str, hardware_option("A profile: shipped name, file, or `local`.")],
    nodes: Nodes = None,
    sketch: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=sketches,
            help=f"A sketch: a file, or one of {', '.join(sketches())}. [default: one proposed for the machine, "
            "written next to the plan; for --sizes one for small and one for large ones]",
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="METHOD", autocompletion=methods, help="auto compares them all; docs/methods.md lists them."
        ),
    ] = "auto",
    size: Annotated[
        int | None,
        size_option("--size", "Input buffer of one rank, such as 64K or 1MiB. [default: the sketch's]"),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES", help="Many sizes, 1KiB..1GiB or 4K,1M,64M: a folder of plans with a selection by size."
        ),
    ] = None,
    root: Annotated[int | None, whole("Root of a broadcast, reduce, gather or scatter. [default: 0]", least=0)] = None,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="For alltoallv, sendrecv and custom: which rank sends what to which."),
    ] = None,
    instances: Annotated[
        int | None,
        whole(
            "Copies of every threadblock. [default: by simulated time, twice as many where that saves 5%]",
            least=1,
            most=64,
        ),
    ] = None,
    protocol: Annotated[
        Literal["auto", "Simple", "LL", "LL128"],
        typer.Option(help="Transport protocol of the generated program; auto chooses by simulated time."),
    ] = "auto",
    measure: Annotated[
        bool,
        measure_option(
            "Time the programs of least simulated time here, with a process for each rank, and take the fastest. Needs "
            "a profile with the costs of the CPU runtime."
        ),
    ] = False,
    top: Top = None,
    time_limit: Annotated[
        float | None,
        time_limit_option(
            "Seconds from the start of the command after which the best plan so far is taken. [default: none]"
        ),
    ] = None,
    output: Annotated[str, document_option("plan", "The plan; with --sizes, a new folder.", metavar="FILE|DIR")],
    as_json: Json = False,
) -> None:
    """Plan how chunks travel in a collective; alltoallv, sendrecv and custom take a --pattern.

    Ctrl-C keeps the best plan so far and marks it interrupted.
    """
    from treadle.passes.collective.tuning import pricing
    from treadle.planner.passes.collective.collectives import ROOTED
    from treadle.planner.passes.collective.limits import Limits
    from treadle.planner.passes.collective.planning import (
        CollectiveOptions,
        make_request,
        plan_collective,
        references,
        require_method,
    )

    most = top_of(measure, top)
    if measure and sizes is not None:
        raise UsageError("--measure times one size, expected it without --sizes")
    require_method(method)
    if root is not None and collective not in ROOTED:
        raise InputError(f"found {root}, expected none: {collective} has no root", where="--root")
    if sizes is not None and size is not None:
        raise InputError("found --size too, expected one of the two", where="--sizes")
    profile = load_hardware(hardware, nodes)
    if protocol != "auto" and all(device.kind == "cpu" for device in profile.devices):
        note(f"--protocol {protocol} goes into the generated program; on CPUs no time depends on it")
    asked = None if pattern is None else store.load(pattern, Pattern)
    fixed = asked.input_bytes() if asked is not None else None
    limits, clock = Limits(time_s=time_limit), clock_of(time_limit)
    measuring = None
    if measure:
        from treadle.runtime.collective.turns import collective_measuring

        measuring = collective_measuring(most, profile, clock)
    try:
        with live_line() as show:
            line = ProgressLine(show, lambda: clock.elapsed_s)
            if sizes is not None:
                from treadle.passes.collective.sizes import plan_sizes

                plan_sizes(
                    collective, profile, None if sketch is None else load_sketch(sketch), sizes, output, method=method,
                    root=root or 0, pattern=asked, instances=instances, protocol=protocol, limits=limits, clock=clock,
                    line=line, hardware_file=hardware, sketch_file=sketch, pattern_file=pattern,
                    as_json=as_json,
                )  # fmt: skip
                return
            if sketch is None:
                guide, sketch_file = proposed(profile, collective, size or fixed, output)
                beside = Path(output).parent / sketch_file
                require_replaceable(beside, "sketch", [hardware, pattern, output])
                require_same(beside, store.dumps(guide), [Path(output)])
            else:
                guide, sketch_file = load_sketch(sketch), sketch
            files = {"hardware": hardware, "sketch": sketch_file, "pattern": pattern}
            price = pricing(profile, protocol, instances or guide.instances)
            plan = plan_collective(
                make_request(collective, profile, guide, size, root or 0, asked, pattern),
                options=CollectiveOptions(method, instances, protocol, limits, price, measuring=measuring),
                clock=clock,
                inputs=references(profile, guide, asked, files),
                on_progress=line,
            )
    except InputError as error:
        if error.where != profile.name:
            raise
        raise InputError(error.args[0], where=hardware, path=error.path) from error
    store.save(plan, output)
    if sketch is None:
        store.save(guide, Path(output).parent / sketch_file)
    note_ending(plan.provenance, time_limit)
    if measure:
        note_unmeasured(plan)
    runtime = _runtime_of(plan, profile)
    if as_json:
        from treadle.passes.collective.rivals import rival_facts

        nccl = rival_facts(profile, collective, plan.decisions.input_bytes)
        facts = {**_facts(plan, runtime), "nccl_us": nccl}
        print_json("plan-collective", {**facts, "output": output, "sketch": sketch_file})
        return
    _print_plan(plan, method, runtime, profile)
    if sketch is None:
        typer.echo(f"wrote {output} and {Path(output).parent / sketch_file}, the sketch it follows")
    else:
        typer.echo(f"wrote {output}")


Runtime = Literal["gpu", "symmetric", "nccl", "cpu", "links", "none"]
RUNTIMES: dict[Runtime, str] = {
    "gpu": "GPUs",
    "nccl": "grouped messages of NCCL",
    "cpu": "the CPU runtime",
    "links": "links and ports",
}
"""What the program of a plan was simulated on; "symmetric" where symmetric memory takes its place, "none" where only
its schedule was timed."""


def _runtime_of(plan: Plan[CollectiveDecisions], hardware: Hardware) -> Runtime:
    from treadle.passes.collective.tuning import carrier_of

    transport = plan.provenance.options["transport"]
    if "program_us" not in transport:
        return "none"
    if "symmetric" in transport:
        return "symmetric"
    by_carrier: dict[str, Runtime] = {"kernels": "gpu", "groups": "nccl", "cpu": "cpu"}
    return "links" if "by_size" in transport else by_carrier[carrier_of(hardware)]


def _facts(plan: Plan[CollectiveDecisions], runtime: Runtime) -> dict[str, Any]:
    """The plan in numbers, for programs."""
    found, certificate, options = plan.decisions, plan.certificate, plan.provenance.options
    links = {name: time / 1000 for name, time in options.get("candidates_ns", {}).items()}
    return {
        "algorithm_bandwidth_GBps": _speed(plan),
        "candidates_us": options.get("candidates_us", links),
        "candidates_links_us": links,
        "bound_holds_for": certificate.scope,
        "chunk_bytes": found.chunk_bytes,
        "collective": found.collective,
        "gap": certificate.gap,
        "interrupted": plan.provenance.interrupted,
        "limit_fired": plan.provenance.limit_fired,
        "lower_bound_us": certificate.lower_bound / 1000,
        "method": plan.provenance.method,
        "not_followed": options.get("not_followed", []),
        "optimal": certificate.optimal,
        "ranks": found.ranks,
        "simulated_on": runtime,
        "skipped": options.get("skipped", {}),
        "t1_us": None if found.routing_ns is None else found.routing_ns / 1000,
        "t2_us": None if found.ordering_ns is None else found.ordering_ns / 1000,
        "t3_us": found.makespan_ns / 1000,
        "time_us": plan.prediction.time_us,
        "switched": len(found.switched),
        "transfers": len(found.transfers),
        "transport": options["transport"],
        "tuned": tuned_facts(plan),
    }


def _print_plan(plan: Plan[CollectiveDecisions], method: str, runtime: Runtime, hardware: Hardware) -> None:
    """The plan in a few lines, for people, and what NCCL itself would take."""
    from treadle.passes.collective.rivals import print_rival
    from treadle.planner.passes import pass_of

    found, certificate, options = plan.decisions, plan.certificate, plan.provenance.options
    time_us, speed = plan.prediction.time_us, _speed(plan)
    verdict = pass_of(plan).optimal(plan) if certificate.optimal else f"gap {certificate.gap:.1%}"
    typer.echo(
        f"{found.collective} on {many(found.ranks, 'rank')}, {format_bytes(found.input_bytes)} each, "
        f"chunks of {format_bytes(found.chunk_bytes)}"
    )
    bound = f"lower bound over {certificate.scope} {certificate.lower_bound / 1000:,.3f} us ({verdict})"
    if runtime == "symmetric":
        typer.echo(f"  time         {time_us:,.3f} us, {options['transport']['symmetric']} over symmetric memory")
        typer.echo(f"  schedule     {_us(found.makespan_ns)} in the alpha-beta model, {bound}")
    elif "program_us" in options["transport"]:
        carried = f"{found.protocol}, {many(found.instances, 'instance')}{', ports in turn' if found.ordered else ''}"
        carried = options["transport"].get("runtime", carried)
        typer.echo(f"  time         {time_us:,.3f} us, program simulated on {RUNTIMES[runtime]}: {carried}")
        typer.echo(f"  schedule     {_us(found.makespan_ns)} in the alpha-beta model, {bound}")
    else:
        typer.echo(f"  time         {time_us:,.3f} us, schedule in the alpha-beta model, {bound}")
    typer.echo(f"  method       {plan.provenance.method}")
    if found.routing_ns is not None:
        typer.echo(
            f"  stages       routing {_us(found.routing_ns)}, ordering {_us(found.ordering_ns)}, "
            f"contiguity {_us(found.makespan_ns)}"
        )
    if found.switched:
        names = ", ".join(switch.name for switch in found.switches)
        typer.echo(f"  in switch    {many(len(found.switched), 'step')} through {names}")
    else:
        typer.echo(f"  transfers    {len(found.transfers)} over {len({(m.src, m.dst) for m in found.transfers})} links")
    if speed is not None:
        typer.echo(f"  bandwidth    {speed:.4g} GB/s (input buffer over time)")
    typer.echo(f"  bound        {certificate.argument}")
    if groups := options["transport"].get("groups"):
        counts = f"{many(groups['rounds'], 'round')}, {many(groups['messages'], 'message')} sent by a rank"
        typer.echo(f"  groups       {counts}; each begins with {groups['group_us']:g} us, no message is cut")
    _print_candidates(options)
    if passed_over := options.get("not_followed"):
        by = options.get("chosen", method)
        typer.echo(f"  not followed by {by}: {', '.join(passed_over)}; --method milp follows them")
    _print_transport(found.protocol, found.instances, options["transport"])
    _print_measured(plan)
    print_rival(hardware, found.collective, found.input_bytes, time_us if runtime in ("gpu", "nccl") else None)


def _speed(plan: Plan[CollectiveDecisions]) -> float | None:
    """GB/s: the input buffer of a rank over the time."""
    return plan.decisions.input_bytes / plan.prediction.time_us / 1000 if plan.prediction.time_us else None


def proposed(hardware: Hardware, collective: str, size_bytes: int | None, output: str) -> tuple[Sketch, str]:
    """A sketch for the machine, and the name of its file, next to the plan."""
    from treadle.planner.passes.collective.sketching import propose

    name = re.sub(r"(\.plan)?(\.json|\.ya?ml)?$", "", Path(output).name)
    return propose(hardware, collective=collective, size_bytes=size_bytes), f"{name}.sketch.json"


def _print_candidates(options: dict[str, Any]) -> None:
    """What `auto` compared, best first, and why it skipped the rest, a paragraph for each reason."""
    links, programs = options.get("candidates_ns", {}), options.get("candidates_us", {})
    ranked = sorted(links, key=lambda name: (programs.get(name, inf), links[name], name != options["chosen"], name))
    rows: list[tuple[str | None, ...]] = []
    for name in ranked:
        program = (f"{programs[name]:,.3f}" if name in programs else None,) if programs else ()
        rows.append((name, *program, f"{links[name] / 1000:,.3f}", "chosen" if name == options["chosen"] else " "))
    columns = ("method", *(["program us"] if programs else []), "schedule us", "")
    print_table("methods compared", columns, rows)
    names: dict[str, list[str]] = {}
    for name, why in sorted(options.get("skipped", {}).items()):
        names.setdefault(why, []).append(name)
    for why, skipped in names.items():
        text = f"skipped: {', '.join(skipped)} ({why})"
        typer.echo(textwrap.fill(text, 118, initial_indent="  ", subsequent_indent="    "))


def _print_transport(protocol: str, instances: int, transport: dict[str, Any]) -> None:
    """The protocol and instances, and the simulated us of all that were tried: a row each protocol, by instances."""
    if "by_size" in transport:
        typer.echo(f"  transport    {protocol}, {many(instances, 'instance')}, not compared: {transport['by_size']}")
        return
    times = {tuple(key.split(" x ")): time for key, time in transport["simulated_us"].items()}
    counts = sorted({int(count) for _, count in times})
    rows = []
    for name in dict.fromkeys(name for name, _ in times):
        row = [times.get((name, str(count))) for count in counts]
        rows.append((name, *(None if time is None else f"{time:,.3f}" for time in row)))
    if ways := transport.get("symmetric_us"):
        words = ", ".join(f"{name} {time:,.3f} us" for name, time in ways.items())
        typer.echo(f"  transport    over symmetric memory {words}; else by the program below")
    print_table("transport, us by instances", ("", *map(str, counts)), rows)
    typer.echo("")


def _print_measured(plan: Plan[CollectiveDecisions]) -> None:
    """The programs that were measured, the best predicted first, and what decided."""
    for tuned in plan.provenance.tuned:
        rows = [
            (
                each.name,
                f"{each.predicted_ns / 1000:,.3f}",
                "" if each.measured_ns is None else f"{each.measured_ns / 1000:,.3f}",
                each.excluded or ("chosen" if each.name == tuned.chosen else " "),
            )
            for each in tuned.ranked
            if each.measured_ns is not None or each.excluded is not None
        ]
        print_table("programs measured here", ("program", "simulated us", "measured us", ""), rows)
    print_tuned(plan)


def _us(nanoseconds: int | None) -> str:
    return "none" if nanoseconds is None else f"{nanoseconds / 1000:,.3f} us"
