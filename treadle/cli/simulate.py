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
    from treadle.codegen.collective.program import CollectiveProgram
    from treadle.codegen.collective.simulate_cpu import CpuTime
    from treadle.codegen.collective.simulate_xml import SimulatedTime
    from treadle.planner.documents.hardware import Hardware
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
    and messages on links for a collective. MSCCL XML is simulated on --hardware at --size: on GPUs with
    threadblocks, message slots, links and ports, on CPUs whose profile has `transports.cpu` as the CPU runtime runs it.
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
    from treadle.codegen.collective.simulate_cpu import simulate_cpu
    from treadle.codegen.collective.simulate_xml import bus_factor, simulate_xml
    from treadle.passes.collective.tuning import on_cpu
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
    if on_cpu(profile):
        timing: CpuTime | SimulatedTime = simulate_cpu(program, profile, size)
        facts, lines = _on_cpu(program, profile, size)
    else:
        timing = timed = simulate_xml(program, profile, size)
        facts, lines = _on_gpu(program, profile, timed)
    if perfetto is not None:
        _write(perfetto, timing.timeline(), file)
    speed = size / timing.time_us / 1e3 if timing.time_us else 0.0
    if as_json:
        shared = {
            "time_us": round(timing.time_us, 3),
            "size_bytes": size,
            "algorithm_gbps": round(speed, 3),
            "bus_gbps": round(speed * bus_factor(program), 3),
        }
        print_json("simulate-xml", {**shared, **facts})
        return
    typer.echo(
        f"{file}: {timing.time_us:,.1f} us for {format_bytes(size)} on {profile.name}, "
        f"{speed:,.3g} GB/s ({speed * bus_factor(program):,.3g} GB/s on the bus)"
    )
    for line in lines:
        typer.echo(f"  {line}")
    if perfetto is not None:
        typer.echo(f"wrote {perfetto}")


def _on_gpu(program: CollectiveProgram, profile: Hardware, timing: SimulatedTime) -> tuple[dict[str, Any], list[str]]:
    """Facts and lines about the time of a program on GPUs."""
    from treadle.planner.documents.scalars import format_bytes

    fitted = profile.transport is not None
    facts = {
        "runtime": "gpu",
        "chunk_bytes": timing.chunk_bytes,
        "message_bytes": timing.message_bytes,
        "slices": timing.slices,
        "busy": {name: round(share, 4) for name, share in timing.busy.items()},
        "busiest_threadblock": round(timing.threadblock, 4),
        "transport_of_this_machine": fitted,
    }
    lines = [
        f"{program.protocol}: chunks of {format_bytes(round(timing.chunk_bytes))} in {many(timing.slices, 'slice')}, "
        f"messages of up to {format_bytes(timing.message_bytes)}",
        f"{'busiest threadblock':<24} busy {timing.threadblock:.0%}",
    ]
    busiest = sorted(timing.busy.items(), key=lambda item: (-item[1], item[0]))
    lines += [f"{name:<24} busy {share:.0%}" for name, share in busiest[:MOST_SHOWN]]
    if all(device.kind == "cpu" for device in profile.devices):
        lines.append(
            f"{profile.name} has CPUs and no `transports.cpu`, so this is the time on GPUs; `treadle profile measure "
            "--backend cpu` measures the costs of the CPU runtime"
        )
    if not fitted:
        lines.append(f"{profile.name} has no `transport`: what threadblocks and protocols cost is that of eight A100")
    return facts, lines


def _on_cpu(program: CollectiveProgram, profile: Hardware, size: int) -> tuple[dict[str, Any], list[str]]:
    """Facts and lines about the time of a program on the CPU runtime: what each term adds to it."""
    from treadle.codegen.collective.simulate_cpu import TERMS, terms_us

    terms = terms_us(program, profile, size)
    facts = {"runtime": "cpu", "terms_us": {term: round(time, 3) for term, time in terms.items()}}
    listed = sorted(terms.items(), key=lambda item: (-item[1], item[0]))
    lines = ["on the CPU runtime, with the costs in `transports.cpu`; how much sooner it would end without"]
    lines += [f"  {TERMS[term]:<34} {time:,.1f} us" for term, time in listed if time > 0]
    return facts, lines


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
