"""`treadle plan fusion`: which computation and collectives run in one kernel, where, and what overlaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from treadle.cli.json_output import print_json
from treadle.cli.lazy import UsageError
from treadle.cli.limit import clock_of
from treadle.cli.options import (
    Json,
    Nodes,
    Top,
    document_option,
    hardware_option,
    measure_option,
    time_limit_option,
    top_of,
    whole,
)
from treadle.cli.output import live_line, note, print_table
from treadle.cli.progress import ProgressLine
from treadle.cli.tuned_lines import note_unmeasured, print_tuned, tuned_facts
from treadle.planner.documents.overwrite import require_replaceable
from treadle.planner.documents.scalars import many

if TYPE_CHECKING:
    from treadle.planner.documents.hardware import Hardware
    from treadle.planner.documents.plan import InputRef, Plan
    from treadle.planner.machine.rates import Machine
    from treadle.planner.passes.fusion.decisions import FusionDecisions
    from treadle.planner.passes.fusion.program import Bindings, Program
    from treadle.planner.passes.fusion.ranking import FusionProblem
    from treadle.planner.search.clock import Clock

MOST_SHOWN = 8
"""Rivals and refusals that are listed; --json and `treadle report` have all."""


def command(
    *,
    program: Annotated[
        str | None, typer.Argument(metavar="PROGRAM", help="Program text, which is read and not run, or MODULE:NAME.")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Find programs in this step instead, from `treadle trace capture`."),
    ] = None,
    optimizer: Annotated[
        Literal["sgd", "adam", "lamb"] | None,
        typer.Option(help="With --trace: what follows the gradients. [default: as in the trace, else adam]"),
    ] = None,
    hardware: Annotated[str, hardware_option("The machine, whose devices are the ranks.")],
    nodes: Nodes = None,
    bind: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Extents of dimensions: N=1M, or B=8,S=1024,H=3072."),
    ] = None,
    parts: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZES", help="Sizes of the tensors that make one dimension: N=1500,1024,10."),
    ] = None,
    ranks: Annotated[
        int | None, whole("Ranks of one group. [default: all devices, or those of a node]", least=1)
    ] = None,
    groups: Annotated[int | None, whole("Groups of a pipeline. [default: the nodes]", least=1)] = None,
    sweep: Annotated[
        str | None,
        typer.Option(metavar="NAME=FROM..TO", help="Plan for many extents, N=1K..1G or N=1K,1M; -o is then a folder."),
    ] = None,
    no_library: Annotated[
        bool, typer.Option("--no-library", help="Only our own matrix products, as for cuda, nccl and tp-overlap.")
    ] = False,
    time_limit: Annotated[
        float | None,
        time_limit_option(
            "Seconds from the start of the command after which the best schedule so far is taken. [default: none]"
        ),
    ] = None,
    measure: Annotated[
        bool,
        measure_option("Time the best predicted schedules here, with a process for each rank, and take the fastest."),
    ] = False,
    top: Top = None,
    output: Annotated[str, document_option("plan", "The plan; a folder with --trace or --sweep.", metavar="FILE|DIR")],
    as_json: Json = False,
) -> None:
    """Choose how a program of computation and collectives runs: what is split, moved before a collective, fused into
    one kernel and overlapped.

    \b
      treadle plan fusion adam.py --hardware dgx2 --bind N=64M -o adam.plan.json
      treadle plan fusion adam.py --hardware dgx2 --sweep N=1K..1G -o plans/
      treadle plan fusion --trace step.trace.json --hardware dgx2 -o plans/

    PROGRAM is a file of program text, which is read and not run, or MODULE:NAME. All schedules that legal
    transformations lead to are enumerated and priced on the machine; the plan lists every fusion taken and refused.
    A schedule is printed as its launches in order: `ol(RS, fuse(C-AG))` is a ReduceScatter, overlapped with one kernel
    of computation and an AllGather. docs/fusion.md has all of it.
    """
    if (program is None) == (trace is None):
        raise UsageError("give either PROGRAM or --trace")
    if trace is not None and (bind or parts or groups or sweep or measure):
        raise UsageError("a trace has its own sizes; --bind, --parts, --groups, --sweep, --measure need PROGRAM")
    if optimizer is not None and trace is None:
        raise UsageError("--optimizer belongs to --trace")
    if sweep is not None and measure:
        raise UsageError("--measure times one size, expected it without --sweep")
    measured = top_of(measure, top)
    clock = clock_of(time_limit)

    from treadle.passes.fusion.inputs import bindings_of, load_program, sweep_of
    from treadle.planner.documents import store
    from treadle.planner.documents.plan import InputRef
    from treadle.planner.errors import InputError
    from treadle.planner.machine.rates import machine_of
    from treadle.probe.resolve import load_hardware

    if (trace or sweep) and Path(output).is_file():
        raise InputError("found a file, expected a folder for several plans", where=output)
    profile = load_hardware(hardware, nodes)
    machine = machine_of(profile).without_library if no_library else machine_of(profile)
    inputs = {"hardware": InputRef(file=hardware, digest=store.digest(profile))}
    if trace is not None:
        _trace(trace, optimizer, profile, machine, ranks, inputs, clock, Path(output), as_json)
        return
    assert program is not None
    given = load_program(program)
    dimension, sizes = ("", ()) if sweep is None else sweep_of(sweep)
    first = tuple(f"{dimension}={size}" for size in sizes[:1])
    bindings = bindings_of(given, profile, (*(bind or ()), *first), parts or (), ranks, groups)
    if sizes:
        _sweep(given, bindings, dimension, sizes, machine, inputs, clock, Path(output), as_json)
    else:
        _one(given, bindings, machine, measured, inputs, clock, output, as_json)


def _one(
    program: Program,
    bindings: Bindings,
    machine: Machine,
    top: int,
    inputs: dict[str, InputRef],
    clock: Clock,
    output: str,
    as_json: bool,
) -> None:
    from treadle.planner.documents import store
    from treadle.planner.passes.fusion.planning import plan_fusion
    from treadle.planner.passes.fusion.ranking import FusionProblem

    problem = FusionProblem(program, bindings, machine)
    with live_line() as show:
        if top:
            plan = _measured(problem, top, inputs, clock, show)
        else:
            plan = plan_fusion(
                problem,
                clock=clock,
                inputs=inputs,
                on_progress=ProgressLine(show, lambda: clock.elapsed_s),
            )
    store.save(plan, output)
    note_limit(plan)
    if top:
        note_unmeasured(plan)
    if as_json:
        print_json("plan-fusion", {**summary(plan), "plan": output})
        return
    describe(plan)
    typer.echo(f"wrote {output}")


def _measured(
    problem: FusionProblem, top: int, inputs: dict[str, InputRef], clock: Clock, show: Callable[[str], None]
) -> Plan[FusionDecisions]:
    """The plan of least measured time, or of least predicted time where no time is left to measure."""
    from treadle.planner.passes.fusion.planning import plan_of
    from treadle.planner.passes.fusion.ranking import rank_schedules
    from treadle.runtime.fusion.choose import measured

    found = rank_schedules(problem, clock=clock)
    if found.limit_fired or clock.over():
        return plan_of(found, inputs)
    with clock.listening():
        found, tuned = measured(found, top, show, clock)
    return plan_of(found, inputs, tuned)


def _sweep(
    program: Program,
    bindings: Bindings,
    dimension: str,
    sizes: tuple[int, ...],
    machine: Machine,
    inputs: dict[str, InputRef],
    clock: Clock,
    folder: Path,
    as_json: bool,
) -> None:
    """A plan for every size in a folder, and the table of their winners."""
    from treadle.planner.documents import store
    from treadle.planner.passes.fusion.notation import legend
    from treadle.planner.passes.fusion.planning import plan_of
    from treadle.planner.passes.fusion.sweep import sweep

    files = [folder / f"{program.name}-{dimension}-{size}.plan.json" for size in sizes]
    for file in files:
        require_replaceable(file, "plan", [each.file for each in inputs.values()])
    swept = sweep(program, bindings, dimension, sizes, machine, clock=clock)
    rows: list[dict[str, Any]] = []
    for size, file, found in zip(sizes, files, swept.plans, strict=True):
        plan = plan_of(found, inputs)
        store.save(plan, file)
        note_limit(plan)
        rows.append({**summary(plan), "size": size, "plan": str(file)})
    changes = [{"from": each.at, "below": each.below, "above": each.above} for each in swept.crossovers]
    if as_json:
        print_json("plan-fusion-sizes", {"sizes": rows, "changes": changes})
        return
    print_table(
        f"{program.name} by {dimension}",
        (dimension, "us", "best schedule", "gap", "over as written", "over fused computation"),
        [
            (
                f"{row['size']:,}",
                f"{row['time_us']:,.1f}",
                row["schedule"],
                f"{row['gap']:.1%}",
                _gain(row, "as_written_us"),
                _gain(row, "computation_fused_us"),
            )
            for row in rows
        ],
    )
    typer.echo(f"where {legend(' '.join(row['schedule'] for row in rows))}")
    for change in changes:
        typer.echo(f"from {dimension}={change['from']:,} on, {change['above']} is faster than {change['below']}")
    typer.echo(f"wrote {many(len(rows), 'plan')} to {folder}")


def _trace(
    file: str,
    optimizer: str | None,
    profile: Hardware,
    machine: Machine,
    ranks: int | None,
    inputs: dict[str, InputRef],
    clock: Clock,
    folder: Path,
    as_json: bool,
) -> None:
    """A plan for every program found in a trace."""
    from treadle.passes.fusion.inputs import require_ranks
    from treadle.planner.documents import store
    from treadle.planner.documents.plan import InputRef
    from treadle.planner.documents.trace import Trace
    from treadle.planner.passes.fusion.find import find
    from treadle.planner.passes.fusion.notation import legend
    from treadle.planner.passes.fusion.parsing import parse
    from treadle.planner.passes.fusion.planning import plan_fusion
    from treadle.planner.passes.fusion.program import Bindings
    from treadle.planner.passes.fusion.ranking import FusionProblem

    trace = store.load(file, Trace)
    devices = profile.ranks
    require_ranks(ranks or devices, 1, profile)
    tensor_ranks = min(ranks or devices, profile.devices_per_node)
    found, passed = find(trace, tensor_ranks=tensor_ranks, optimizer=optimizer)
    inputs = {**inputs, "trace": InputRef(file=file, digest=store.digest(trace))}
    for each in found:
        require_replaceable(folder / f"{each.name}.plan.json", "plan", [source.file for source in inputs.values()])
    rows: list[dict[str, Any]] = []
    for place, each in enumerate(found):
        shared = (ranks or devices) if each.parallel == "data" else tensor_ranks
        program = parse(each.text, each.name)
        bindings = Bindings(each.extents, shared, 1, each.parts)
        share = clock.share(len(found) - place)
        plan = plan_fusion(FusionProblem(program, bindings, machine), clock=share, inputs=inputs)
        path = folder / f"{each.name}.plan.json"
        store.save(plan, path)
        note_limit(plan)
        facts = {"count": each.count, "where": each.where, "assumed": each.assumed, "plan": str(path)}
        rows.append({**summary(plan), **facts})
    saved = sum(row["count"] * (row["computation_fused_us"] - row["time_us"]) for row in rows)
    if as_json:
        passes = [{"what": each.what, "why": each.why} for each in passed]
        print_json("plan-fusion-found", {"found": rows, "passed_over": passes, "saved_us": saved})
        return
    print_table(
        f"found in {trace.name}",
        ("program", "times", "ranks", "us", "over as written", "over fused computation", "schedule", "first at"),
        [
            (
                row["program"],
                row["count"],
                row["ranks"],
                f"{row['time_us']:,.1f}",
                _gain(row, "as_written_us"),
                _gain(row, "computation_fused_us"),
                row["schedule"],
                row["where"],
            )
            for row in rows
        ],
    )
    typer.echo(f"where {legend(' '.join(row['schedule'] for row in rows))}")
    for line in dict.fromkeys(row["assumed"] for row in rows if row["assumed"]):
        typer.echo(f"assumed: {line}")
    reasons = Counter(each.why for each in passed)
    print_table("passed over", ("times", "why"), [(count, why) for why, count in reasons.most_common(MOST_SHOWN)])
    typer.echo(f"predicted to save {saved:,.1f} us of each step, against fused computation and separate collectives")
    typer.echo(f"wrote {many(len(rows), 'plan')} to {folder}")


def _gain(facts: dict[str, Any], peer: str) -> str:
    return f"{facts[peer] / max(facts['time_us'], 1e-9):.2f}x"


def note_limit(plan: Plan[FusionDecisions]) -> None:
    """Note where the enumeration was cut."""
    limit = plan.provenance.options.get("time_limit_s")
    if plan.provenance.interrupted:
        note("interrupted: this is the best schedule so far")
    elif plan.provenance.limit_fired and limit is not None:
        note(f"the time limit of {limit:g} s, or that of the number of schedules, fired: this is the best so far")
    elif plan.provenance.limit_fired:
        note("the program has more schedules than the search looks at: this is the best of those")


def summary(plan: Plan[FusionDecisions]) -> dict[str, Any]:
    """What `--json` prints of a plan, times in us."""
    from treadle.planner.passes.fusion.decisions import AS_WRITTEN, COMPUTATION_FUSED
    from treadle.planner.passes.fusion.notation import notation
    from treadle.planner.passes.fusion.parsing import parse

    decisions = plan.decisions
    program, schedule = parse(decisions.program, "program"), parse(decisions.schedule, "schedule")
    peers = {
        words: next((rival.time_ns / 1000 for rival in decisions.rivals if rival.name.startswith(words)), None)
        for words in (AS_WRITTEN, COMPUTATION_FUSED)
    }
    return {
        "program": program.name,
        "schedule": notation(schedule),
        "time_us": plan.prediction.time_us,
        "as_written_us": peers[AS_WRITTEN],
        "computation_fused_us": peers[COMPUTATION_FUSED],
        "lower_bound_us": plan.certificate.lower_bound / 1000,
        "gap": plan.certificate.gap,
        "optimal": plan.certificate.optimal,
        "bound": plan.certificate.argument,
        "ranks": decisions.ranks,
        "groups": decisions.groups,
        "extents": dict(decisions.extents),
        "volume": decisions.volume,
        "volume_between_groups": decisions.volume_between_groups,
        "traffic": decisions.traffic,
        "state": decisions.state,
        "considered": decisions.considered,
        "stages": [
            {"name": stage.name, "kind": stage.kind, "operations": list(stage.members), "time_us": stage.time_ns / 1000,
             "algorithm": stage.algorithm, "protocol": stage.protocol, "channels": stage.channels,
             "overlaps": stage.overlaps, "own_us": stage.own_ns / 1000 if stage.own_ns is not None else None}
            for stage in decisions.stages
        ],
        "rivals": [{"name": rival.name, "time_us": rival.time_ns / 1000} for rival in decisions.rivals],
        "tuned": tuned_facts(plan),
        "measured_us": {name: time / 1000 for name, time in decisions.measured_ns.items()},
        "taken": [_reason(each) for each in decisions.taken],
        "refused": [_reason(each) for each in decisions.refused],
    }  # fmt: skip


def _reason(reason: Any) -> dict[str, Any]:
    fields = {"transform": reason.transform, "on": list(reason.on), "why": reason.why}
    return fields if reason.code is None else {**fields, "code": reason.code, "witness": reason.witness}


def describe(plan: Plan[FusionDecisions]) -> None:
    """Print a plan: what it is, its launches, its rivals, what was taken and what was refused."""
    from treadle.planner.passes.fusion.decisions import AS_WRITTEN, COMPUTATION_FUSED
    from treadle.planner.passes.fusion.notation import legend

    facts = summary(plan)
    sizes = ", ".join(f"{name}={extent:,}" for name, extent in sorted(facts["extents"].items()))
    ranks = many(facts["ranks"], "rank")
    where = f"{many(facts['groups'], 'group')} of {ranks}" if facts["groups"] > 1 else ranks
    time = facts["time_us"]
    proof = "proved optimal" if facts["optimal"] else f"gap {facts['gap']:.1%}"
    crossing = f", {facts['volume_between_groups']:,.0f} to the next group" if facts["volume_between_groups"] else ""
    rows = [
        ("program", f"{facts['program']}: {sizes} on {where}"),
        ("schedule", facts["schedule"]),
        ("where", legend(facts["schedule"])),
        ("time", f"{time:,.1f} us predicted, {_gain(facts, 'as_written_us')} as fast as written, "
                 f"{_gain(facts, 'computation_fused_us')} as with fused computation alone"),
        ("lower bound", f"{facts['lower_bound_us']:,.1f} us for any schedule ({proof}): {facts['bound']}"),
        ("per rank", f"sends {facts['volume']:,.0f} elements{crossing}; loads and stores {facts['traffic']:,.0f}; "
                     f"keeps {facts['state']:,.0f} of state"),
    ]  # fmt: skip
    if measured := facts["measured_us"]:
        rows.append(("measured", f"{min(measured.values()):,.1f} us"))
    for name, text in rows:
        typer.echo(f"{name:<13}{text}")
    print_tuned(plan)
    print_table(
        "launches",
        ("launch", "kind", "operations", "us", "how"),
        [
            (stage["name"], stage["kind"], ", ".join(stage["operations"]), f"{stage['time_us']:,.1f}", _how(stage))
            for stage in facts["stages"]
        ],
    )
    peers = [rival for rival in facts["rivals"] if rival["name"].startswith((AS_WRITTEN, COMPUTATION_FUSED))]
    others = [rival for rival in facts["rivals"] if rival not in peers]
    print_table(
        f"other schedules, of {facts['considered']:,} that were priced",
        ("schedule", "us", "times", *(["measured us"] if measured else [])),
        [
            (
                rival["name"],
                f"{rival['time_us']:,.1f}",
                f"{rival['time_us'] / max(time, 1e-9):.2f}",
                *([f"{measured[rival['name']]:,.1f}" if rival["name"] in measured else "-"] if measured else []),
            )
            for rival in (*others[:MOST_SHOWN], *peers)
        ],
    )
    for title in ("taken", "refused"):
        print_table(
            title,
            ("transformation", "on", "why"),
            [(each["transform"], ", ".join(each["on"]), each["why"]) for each in facts[title][:MOST_SHOWN]],
        )
        if len(facts[title]) > MOST_SHOWN:
            typer.echo(f"and {len(facts[title]) - MOST_SHOWN} more; --json and `treadle report` have all")


def _how(stage: dict[str, Any]) -> str:
    words = []
    if stage["algorithm"] is not None:
        words.append(f"{stage['algorithm']}, {stage['protocol']}, {many(stage['channels'], 'channel')}")
    if stage["own_us"] is not None:
        words.append(f"call of a library; our own kernel takes {stage['own_us']:,.1f}")
    if stage["overlaps"]:
        words.append("overlaps with the one before")
    return "; ".join(words)
