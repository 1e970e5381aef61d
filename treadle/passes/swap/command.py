"""`treadle plan swap`: order, memory pool and copies to and from the host of one iteration."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec.structs import replace

from treadle.cli.json_output import print_json
from treadle.cli.lazy import UsageError
from treadle.cli.limit import clock_of, note_ending
from treadle.cli.options import (
    Json,
    Top,
    document_option,
    hardware_option,
    measure_option,
    size_option,
    time_limit_option,
    top_of,
    whole,
)
from treadle.cli.output import live_line, note
from treadle.cli.progress import ProgressLine
from treadle.cli.tuned_lines import note_unmeasured, print_tuned, tuned_facts
from treadle.planner.documents.scalars import format_bytes, format_time, many

if TYPE_CHECKING:
    from treadle.planner.documents.plan import InputRef, Plan
    from treadle.planner.documents.trace import OpRun, Trace
    from treadle.planner.passes.swap.decisions import SwapDecisions
    from treadle.planner.passes.swap.problem import SwapOp, SwapProblem


def command(
    *,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="The iteration, from `treadle trace capture`.")
    ] = None,
    problem: Annotated[
        str | None, typer.Option(metavar="FILE", help="A swap problem written by hand, instead of a trace.")
    ] = None,
    hardware: Annotated[str | None, hardware_option("The device, its host and the copies between them.")] = None,
    device_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|SHAREx",
            help="16GiB, or 0.5x for a share of the ideal footprint, in which the order of the trace needs no copy. "
            "[default: the device's]",
        ),
    ] = None,
    host_memory: Annotated[
        int | None,
        size_option("--host-memory", "The most that may be pinned on the host. [default: the host's]"),
    ] = None,
    reserve: Annotated[
        int | None, size_option("--reserve", "Part of the device's memory that stays free: the framework's context.")
    ] = None,
    allocator: Annotated[
        Literal["auto", "pool", "offset", "bytes"],
        typer.Option(
            help="Memory is classes of equal objects, one arena with an address for each tensor, or counted bytes "
            "only; auto takes the faster plan of the first two.",
        ),
    ] = "auto",
    method: Annotated[
        Literal["auto", "genetic", "exact"],
        typer.Option(help="auto improves the genetic search's plan and solves small problems exactly."),
    ] = "auto",
    as_published: Annotated[
        bool, typer.Option("--as-published", help="The genetic search of SwapAdvisor's paper, and nothing else.")
    ] = False,
    population: Annotated[
        int | None, whole("Size of a generation. [default: 64, or 144 with --as-published]", least=2, most=100_000)
    ] = None,
    generations: Annotated[int, whole("The most generations.", least=0)] = 1000,
    patience: Annotated[int, whole("Generations without improvement that end the search.", least=1)] = 100,
    with_recompute: Annotated[
        bool,
        typer.Option(
            "--with-recompute",
            help="Also recompute tensors instead of copying them, and choose between the implementations of each op.",
        ),
    ] = False,
    same_bits: Annotated[
        bool,
        typer.Option(
            "--same-bits", help="With --with-recompute: only implementations with the same bits as the model's own."
        ),
    ] = False,
    seed: Annotated[int, whole("The seed of all random numbers.", least=0, most=2**31 - 1)] = 0,
    workers: Annotated[int | None, whole("Processes; the plan is the same. [default: one per core]", least=1)] = None,
    executor: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="dask://HOST:PORT or dask://local; the plan is the same.")
    ] = None,
    measure: Annotated[
        bool,
        measure_option(
            "Run the best plans of each allocator and part of the search here, on an emulation of the device, and take "
            "the fastest. Searches for 60% of the time limit."
        ),
    ] = False,
    top: Top = None,
    time_limit: Annotated[
        float, time_limit_option("Seconds from the start of the command after which the best plan so far is taken.")
    ] = 300.0,
    output: Annotated[str, document_option("plan", "The plan to write.")],
    as_json: Json = False,
) -> None:
    """Plan what to copy to the host and back, so that an iteration fits its device and loses little time.

    Searches the order of operators, the division of memory and the copies together. The plan is written whenever a
    better one is found, so a search that is killed loses nothing. Ctrl-C ends the search with the best plan so far.
    """
    if (trace is None) == (problem is None):
        raise UsageError("give either --trace or --problem")
    if trace is not None and hardware is None:
        raise UsageError("--trace needs --hardware, for the device's memory and the speed of its copies")
    if problem is not None and hardware is not None:
        raise UsageError("--problem names its own machine, so it goes without --hardware")
    if with_recompute and trace is None:
        raise UsageError("--with-recompute needs --trace: a swap problem does not state what its operators compute")
    if same_bits and not with_recompute:
        raise UsageError("--same-bits belongs to --with-recompute; copies change no bits")
    most = top_of(measure, top)
    if measure and trace is None:
        raise UsageError("--measure needs --trace: it runs the model")
    if measure and (with_recompute or as_published or allocator == "bytes"):
        other = "--with-recompute" if with_recompute else "--as-published" if as_published else "--allocator bytes"
        raise UsageError(f"--measure compares plans of copies that run, expected it without {other}")
    clock = clock_of(time_limit)

    from treadle.planner.documents import store
    from treadle.planner.errors import LimitError
    from treadle.planner.passes.swap.planning import SwapOptions, SwapTask, parse_memory, plan_swap, with_memory
    from treadle.planner.passes.swap.search.options import BOTH
    from treadle.planner.search.compiled import COMPILES

    allocators: Any = (allocator,) if allocator != "auto" else ("pool",) if as_published else BOTH
    options = SwapOptions(
        method=method,
        allocator=allocators[0],
        allocators=allocators,
        faithful=as_published,
        population=population,
        generations=generations,
        patience=patience,
        seed=seed,
        time_limit_s=time_limit,
        workers=workers or os.cpu_count() or 1,
        executor=executor,
    )
    memory = None if device_memory is None else parse_memory(device_memory)
    # a share is of the footprint, so the profile need not state the memory, and this value is replaced
    stands = memory if memory is None or isinstance(memory, int) else 0
    whole, runs, step, inputs = _sources(trace, problem, hardware, stands, host_memory, reserve)
    if measure and step is not None:
        from treadle.runtime.swap.turns import swap_measuring

        options = dataclasses.replace(options, measuring=swap_measuring(most, step, clock))
    if not COMPILES:
        note("numba is not installed: the same search takes many times as long; pip install 'treadle[swap]'")
    try:
        with live_line() as show:
            common: dict[str, Any] = {
                "clock": clock,
                "inputs": inputs,
                "on_progress": ProgressLine(show, lambda: clock.elapsed_s),
                "on_plan": lambda plan: store.save(plan, output),
            }
            if with_recompute and step is not None:
                from treadle.planner.job.recompute_swap.memory_runs import SAME_BITS
                from treadle.planner.job.recompute_swap.planning import JointOptions, JointProblem, plan_joint

                joint = JointOptions(swap=options, families=SAME_BITS if same_bits else None)
                both = JointProblem(step, whole.machine, whole.reserve_bytes, memory)
                plan = plan_joint(both, options=joint, **common)
            else:
                given = whole if memory is None else with_memory(whole, memory)
                plan = plan_swap(SwapTask(given, runs), options=options, **common)
    except KeyboardInterrupt:
        raise LimitError("interrupted before a plan was found") from None
    store.save(plan, output)
    note_ending(plan.provenance, time_limit)
    if measure:
        note_unmeasured(plan)
    if step is not None:
        note_rounding(step, plan)
    facts = summary(plan)
    if as_json:
        print_json("plan-swap", {**facts, "tuned": tuned_facts(plan), "plan": output})
    else:
        typer.echo(describe(facts))
        print_tuned(plan)
        typer.echo(f"wrote {output}")


def note_rounding(trace: Trace, plan: Plan[SwapDecisions]) -> None:
    """Note where the plan's results may differ from the model's own in the last bits."""
    from treadle.planner.job.recompute_swap.memory_runs import rounded_otherwise

    other = rounded_otherwise(trace, plan.decisions.runs)
    if other:
        note(
            f"{many(len(other), 'operator')} make their results by calls that may round them otherwise than the "
            f"model's own, such as {other[0]}; --same-bits plans without these"
        )


def _sources(
    trace: str | None,
    problem: str | None,
    hardware: str | None,
    memory_bytes: int | None,
    host_bytes: int | None,
    reserve_bytes: int | None,
) -> tuple[SwapProblem, tuple[OpRun, ...], Trace | None, dict[str, InputRef]]:
    """The problem that the files describe, the runs that it lists, the trace with its times, and the files."""
    from treadle.planner.documents import store
    from treadle.planner.documents.plan import InputRef
    from treadle.planner.documents.trace import Trace
    from treadle.planner.passes.swap.extract import machine_of
    from treadle.planner.passes.swap.planning import inplace_problem
    from treadle.planner.passes.swap.problem import SwapProblem
    from treadle.probe.resolve import load_hardware

    if trace is None or hardware is None:
        loaded = store.load(problem or "", SwapProblem)
        inputs = {"problem": InputRef(file=Path(problem or "").name, digest=store.digest(loaded))}
        machine = loaded.machine if host_bytes is None else replace(loaded.machine, host_bytes=host_bytes)
        reserved = loaded.reserve_bytes if reserve_bytes is None else reserve_bytes
        return replace(loaded, machine=machine, reserve_bytes=reserved), (), None, inputs
    profile = load_hardware(hardware)
    step = store.load(trace, Trace)
    inputs = {
        "trace": InputRef(file=Path(trace).name, digest=store.digest(step)),
        "hardware": InputRef(file=hardware, digest=store.digest(profile)),
    }
    step = with_times(step, hardware)
    task = inplace_problem(step, machine_of(profile, memory_bytes, host_bytes), reserve_bytes or 0)
    return task.problem, task.runs, step, inputs


def with_times(trace: Trace, hardware: str) -> Trace:
    """The trace with modelled times where it has none."""
    if trace.costs.model != "absent":
        return trace
    from treadle.capture.costs import with_roofline  # imports torch, which takes seconds
    from treadle.probe.resolve import load_hardware

    return with_roofline(trace, load_hardware(hardware))


def summary(plan: Plan[SwapDecisions]) -> dict[str, Any]:
    """The figures that people ask for first."""
    from treadle.planner.passes.swap.minimum import least_memory
    from treadle.planner.passes.swap.planning import footprint
    from treadle.planner.passes.swap.timeline_of import dropped

    decisions, certificate = plan.decisions, plan.certificate
    problem = decisions.problem
    again = repeated(decisions)
    again_ns = sum(op.time_ns for op in again)
    ideal = problem.ideal_ns - again_ns
    return {
        "device_memory_bytes": problem.machine.memory_bytes,
        "footprint_bytes": footprint(problem),
        "least_memory_bytes": least_memory(problem, decisions.allocator).memory_bytes,
        "reserve_bytes": problem.reserve_bytes,
        "scratch_bytes": problem.scratch_bytes,
        "peak_bytes": decisions.peak_bytes,
        "allocator": decisions.allocator,
        "pool": [{"object_bytes": part.object_bytes, "count": part.count} for part in decisions.pool],
        "time_ns": decisions.time_ns,
        "ideal_ns": ideal,
        "of_ideal": ideal / decisions.time_ns if decisions.time_ns else 1.0,
        "idle_ns": decisions.idle_ns,
        "in_bytes": decisions.in_bytes,
        "out_bytes": decisions.out_bytes,
        "ops": len(problem.ops),
        "in_copies": sum(node.kind == "in" for node in decisions.nodes),
        "out_copies": sum(node.kind == "out" for node in decisions.nodes),
        "early_copies": sum(node.early for node in decisions.nodes),
        "drops": len(dropped(decisions)),
        "repeated_runs": len(again),
        "repeated_ns": again_ns,
        "initial_residents": len(decisions.initial),
        "lower_bound_ns": int(certificate.lower_bound),
        "gap": certificate.gap,
        "optimal": certificate.optimal,
        "bound_argument": certificate.argument,
        "bound_holds_for": certificate.scope or "any order",
        "generations": len(plan.provenance.search_log),
        "method": plan.provenance.method,
        "limit_fired": plan.provenance.limit_fired,
        "interrupted": plan.provenance.interrupted,
    }


def repeated(decisions: SwapDecisions) -> list[SwapOp]:
    """Operators that make again what an earlier one made."""
    seen: set[str] = set()
    first = [not (run.op in seen or seen.add(run.op)) for run in decisions.runs]  # type: ignore[func-returns-value]
    return [op for op, once in zip(decisions.problem.ops, first, strict=False) if not once]


def describe(facts: dict[str, Any]) -> str:
    """The summary as a few aligned lines."""
    whole, memory = facts["footprint_bytes"], facts["device_memory_bytes"]
    beside = [f"{format_bytes(facts[key + '_bytes'])} {key}" for key in ("scratch", "reserve") if facts[key + "_bytes"]]
    memory_line = f"{format_bytes(memory)} ({memory / max(1, whole):.2f}x of the {format_bytes(whole)} without copies)"
    proof = "proved optimal" if facts["optimal"] else f"gap {facts['gap']:.2%}"
    objects = [f"{part['count']} x {format_bytes(part['object_bytes'])}" for part in facts["pool"]]
    pool = "1 class" if len(objects) == 1 else f"{len(objects)} classes"
    generations = facts["generations"]
    early = f" ({facts['early_copies']} early)" if facts["early_copies"] else ""

    recomputed = (
        f"{many(facts['repeated_runs'], 'run')} of operators that ran before, {format_time(facts['repeated_ns'])}"
    )

    def moved(direction: str) -> str:
        return f"{facts[f'{direction}_copies']} {direction} of {format_bytes(facts[f'{direction}_bytes'])}"

    rows = [
        ("memory", memory_line),
        ("least", f"{format_bytes(facts['least_memory_bytes'])} for any plan with the allocator {facts['allocator']}"),
        ("peak", " + ".join([f"{format_bytes(facts['peak_bytes'])} of tensors", *beside])),
        (
            "time",
            f"{format_time(facts['time_ns'])}, {facts['of_ideal']:.2%} of ideal ({format_time(facts['ideal_ns'])})",
        ),
        ("idle", f"{format_time(facts['idle_ns'])} of waiting for copies"),
        ("lower bound", f"{format_time(facts['lower_bound_ns'])}, {proof} for {facts['bound_holds_for']}"),
        ("copies", f"{moved('in')}, {moved('out')}{early}, {many(facts['drops'], 'drop')} without a copy"),
        *([("recomputed", recomputed)] if facts["repeated_runs"] else []),
        *([("pool", f"{pool}: {', '.join(objects)}")] if objects else []),
        ("found by", facts["method"] + (f", {many(generations, 'generation')} searched" if generations else "")),
    ]
    return "\n".join(f"{name:<13}{text}" for name, text in rows)
