"""`treadle simulate`: a plan's timeline, or the time of MSCCL XML on a machine, predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli.json_output import print_json
from treadle.cli.options import Json, Nodes, hardware_option, size_option, written
from treadle.planner.documents.scalars import many

if TYPE_CHECKING:
    from treadle.planner.timeline.allocations import Allocations


def command(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A plan, or MSCCL XML.")],
    perfetto: Annotated[
        str | None,
        written(
            "--perfetto",
            kind="timeline",
            endings=(".json",),
            metavar="OUT",
            help="Write the timeline in the Chrome trace format, for ui.perfetto.dev.",
        ),
    ] = None,
    memory_snapshot: Annotated[
        str | None,
        written(
            "--memory-snapshot",
            kind="memory snapshot",
            endings=(".pickle", ".pkl"),
            metavar="OUT",
            help="Write what a memory or swap plan allocates as a memory snapshot, for docs.pytorch.org/memory_viz.",
        ),
    ] = None,
    hardware: Annotated[str | None, hardware_option("For MSCCL XML: the machine.")] = None,
    nodes: Nodes = None,
    size: Annotated[
        int | None,
        size_option("--size", "For MSCCL XML: bytes as minBytes counts them (the larger buffer of a rank).", least=1),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the timeline of a plan, or the time of MSCCL XML on a machine.

    The timeline has operators and bytes in use for a memory plan, copies in both directions as well for a swap plan,
    and messages on links for a collective. MSCCL XML is simulated on --hardware at --size, with threadblocks, message
    slots, links and ports.
    """
    from treadle.planner.documents import store
    from treadle.planner.errors import InputError

    text = store.read_text(file)
    xml = text.lstrip("\ufeff \t\r\n").startswith("<")
    if not xml:
        given = [name for name, value in (("--hardware", hardware), ("--nodes", nodes), ("--size", size)) if value]
        if given:
            raise InputError(f"found a document with {given[0]}, expected MSCCL XML: a plan has its own", where=file)
        _plan(file, perfetto, memory_snapshot, as_json)
    elif memory_snapshot is not None:
        raise InputError("found MSCCL XML with --memory-snapshot, expected a memory or swap plan", where=file)
    else:
        _xml(file, text, hardware, nodes, size, perfetto, as_json)


def _plan(file: str, perfetto: str | None, memory_snapshot: str | None, as_json: bool) -> None:
    from treadle.check.plan import require_accepted
    from treadle.codegen.targets import targets_of as codegen_room_of
    from treadle.passes import room_of
    from treadle.planner.documents import store
    from treadle.planner.documents.plan import Plan
    from treadle.planner.passes import name_of

    plan = store.load(file, Plan)
    require_accepted(plan, file)
    targets = codegen_room_of(plan)
    if memory_snapshot is not None:
        _write_snapshot(memory_snapshot, targets.allocations(plan), name_of(plan.decisions), file)
    timeline = targets.timeline(plan)
    if perfetto is not None:
        _write(perfetto, timeline, file)
    said = room_of(plan).simulated(plan, timeline)
    if as_json:
        busy = {name: time / 1000 for name, time in timeline.busy_ns().items()}
        shared = {"planned_us": plan.prediction.time_us, "tasks": len(timeline.tasks), "busy_us": busy}
        print_json("simulate-plan", {**shared, **said.facts})
        return
    typer.echo(f"{file}: {said.headline}")
    for line in said.lines:
        typer.echo(f"  {line}")
    for output in (perfetto, memory_snapshot):
        if output is not None:
            typer.echo(f"wrote {output}")


MOST_SHOWN = 4
"""Links and ports that are named, the busiest first."""


def _xml(
    file: str,
    text: str,
    hardware: str | None,
    nodes: int | None,
    size: int | None,
    perfetto: str | None,
    as_json: bool,
) -> None:
    from treadle.codegen.collective import check as check_program
    from treadle.codegen.collective.msccl import xml as msccl_xml
    from treadle.codegen.collective.simulate_xml import bus_factor, simulate_xml
    from treadle.planner.documents.scalars import format_bytes
    from treadle.planner.errors import CheckFailed, InputError
    from treadle.probe.resolve import load_hardware

    program = msccl_xml.parse(text, file)
    if hardware is None or size is None:
        raise InputError("found MSCCL XML, expected --hardware and --size with it", where=file)
    if size > 2**50:
        raise InputError(f"found {size} bytes, expected at most 1 PiB", where="--size")
    findings = check_program.check(program)
    if findings:
        raise CheckFailed(f"{file}: rejected: {many(len(findings), 'finding')}", tuple(findings))
    profile = load_hardware(hardware, nodes)
    timing = simulate_xml(program, profile, size)
    if perfetto is not None:
        _write(perfetto, timing.timeline(), file)
    speed = size / timing.time_us / 1e3 if timing.time_us else 0.0
    fitted = profile.transport is not None
    if as_json:
        print_json(
            "simulate-xml",
            {
                "time_us": round(timing.time_us, 3),
                "size_bytes": size,
                "algorithm_gbps": round(speed, 3),
                "bus_gbps": round(speed * bus_factor(program), 3),
                "chunk_bytes": timing.chunk_bytes,
                "message_bytes": timing.message_bytes,
                "slices": timing.slices,
                "busy": {name: round(share, 4) for name, share in timing.busy.items()},
                "busiest_threadblock": round(timing.threadblock, 4),
                "transport_of_this_machine": fitted,
            },
        )
        return
    typer.echo(
        f"{file}: {timing.time_us:,.1f} us for {format_bytes(size)} on {profile.name}, "
        f"{speed:,.3g} GB/s ({speed * bus_factor(program):,.3g} GB/s on the bus)"
    )
    typer.echo(
        f"  {program.protocol}: chunks of {format_bytes(round(timing.chunk_bytes))} in {many(timing.slices, 'slice')}, "
        f"messages of up to {format_bytes(timing.message_bytes)}"
    )
    typer.echo(f"  {'busiest threadblock':<24} busy {timing.threadblock:.0%}")
    for name, share in sorted(timing.busy.items(), key=lambda item: (-item[1], item[0]))[:MOST_SHOWN]:
        typer.echo(f"  {name:<24} busy {share:.0%}")
    if not fitted:
        typer.echo(f"  {profile.name} has no `transport`: what threadblocks and protocols cost is that of eight A100")
    if perfetto is not None:
        typer.echo(f"wrote {perfetto}")


def _write(perfetto: str, timeline: Any, file: str) -> None:
    from treadle.planner.documents.files import write_text
    from treadle.planner.timeline.chrome_trace import chrome_trace

    trace = chrome_trace(timeline.tasks, timeline.resources, timeline.schedule, title=Path(file).name)
    write_text(perfetto, json.dumps(trace, sort_keys=True) + "\n")


def _write_snapshot(output: str, allocations: Allocations | None, pass_name: str, file: str) -> None:
    from treadle.planner.documents.files import write_bytes
    from treadle.planner.errors import InputError
    from treadle.planner.timeline.memory_snapshot import pickled

    if allocations is None:
        text = f"found a {pass_name} plan with --memory-snapshot, expected a memory or swap plan"
        raise InputError(text, where=file)
    write_bytes(output, pickled(allocations, Path(file).name))
