"""`treadle plan memory`: what to keep and what to recompute within a budget."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from treadle.cli.json_output import print_json
from treadle.cli.lazy import UsageError
from treadle.cli.limit import clock_of, note_ending
from treadle.cli.options import Json, choice, document_option, hardware_option, share, size_option, time_limit_option
from treadle.cli.output import live_line, note
from treadle.cli.progress import ProgressLine
from treadle.planner.documents.scalars import many

if TYPE_CHECKING:
    from treadle.planner.documents.plan import InputRef, Plan, Scope
    from treadle.planner.documents.trace import Trace
    from treadle.planner.passes.memory.decisions import MemoryDecisions
    from treadle.planner.passes.memory.problem import MemoryProblem
    from treadle.planner.passes.memory.search.attempts import MemoryOptions, Method

SCOPES: dict[Scope, str] = {
    "any order": "any order of recomputation",
    "forward order": "recomputation in forward order",
    "forward order, reads left": "recomputation in forward order under --as-published",
    "no recomputation": "plans without recomputation",
}


def command(
    *,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="The training step, from `treadle trace capture`.")
    ] = None,
    problem: Annotated[
        str | None, typer.Option(metavar="FILE", help="A memory problem written by hand, instead of a trace.")
    ] = None,
    hardware: Annotated[
        str | None,
        hardware_option(
            "Model the times of a trace that has none by this profile. Without it they are measured on this machine."
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|SHAREx",
            help="8GiB, or 0.6x for a share of the step's peak in plain PyTorch, parameters, batch and gradients "
            "included.",
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="LOW..HIGH[:COUNT]",
            help="Instead of --budget: 0.2x..1.0x or 4GiB..12GiB for nine budgets, 0.2x..1.0x:5 for five, each started "
            "from the one below. -o is then a folder of plans, with a table and a curve.",
        ),
    ] = None,
    output: Annotated[str, document_option("plan", "The plan to write, or the folder of --sweep.", metavar="FILE|DIR")],
    as_published: Annotated[
        bool,
        typer.Option(
            "--as-published",
            help="As in MONeT's paper, what a backward op reads is still there when its stage is left, not only when "
            "it is entered.",
        ),
    ] = False,
    method: Annotated[
        Literal["auto", "heuristic", "segments", "windows", "full", "retention", "rounding"],
        typer.Option(help="How to search; auto takes the methods that suit the size, one after the other."),
    ] = "auto",
    without: Annotated[
        list[str] | None,
        choice(
            ("conv", "out", "int", "inplace", "grad-inplace", "rng", "statistics"),
            "--without",
            "Leave a family out; may be repeated.",
        ),
    ] = None,
    no_recompute: Annotated[bool, typer.Option("--no-recompute", help="Choose implementations only.")] = False,
    hold_gradients: Annotated[
        bool, typer.Option("--hold-gradients", help="Gradients of parameters are held from step to step.")
    ] = False,
    reserve: Annotated[
        int | None, size_option("--reserve", "Part of the budget that stays free: fragmentation, optimizer state.")
    ] = None,
    gap: Annotated[float, share("Stop this near the optimum.")] = 0.01,
    time_limit: Annotated[
        float,
        time_limit_option(
            "Seconds from the start of the command after which the best plan so far is taken; of --sweep, for each "
            "budget."
        ),
    ] = 120.0,
    solver: Annotated[
        Literal["highs", "scip", "cp_sat", "gurobi"], typer.Option(help="The solver of the 0-1 programs.")
    ] = "highs",
    as_json: Json = False,
) -> None:
    """Choose what a training step keeps and what it recomputes, so that it fits a budget and loses little time.

    The plan is written whenever a better one is found, so a search that is killed loses nothing. Ctrl-C and SIGTERM end
    the search with the best plan so far.
    """
    if (trace is None) == (problem is None):
        raise UsageError("give either --trace or --problem")
    if budget is not None and sweep is not None:
        raise UsageError("give either --budget or --sweep")
    if trace is not None and budget is None and sweep is None:
        raise UsageError("--trace needs --budget or --sweep")

    from treadle.planner.documents import store
    from treadle.planner.errors import InputError, LimitError
    from treadle.planner.passes.memory.planning import parse_budget, plan_memory, with_budget
    from treadle.planner.passes.memory.problem import FAMILIES
    from treadle.planner.passes.memory.search.attempts import MemoryOptions
    from treadle.planner.search.clock import Clock

    families = tuple(name for name in FAMILIES if name not in (without or ()))
    options = MemoryOptions(
        dependency_set="leaving" if as_published else "entering",
        method=method,
        families=None if families == FAMILIES else families,
        recompute=not no_recompute,
        hold_gradients=hold_gradients,
        reserve_bytes=reserve or 0,
        gap=gap,
        time_limit_s=time_limit,
        solver=solver,
    )
    try:
        if sweep is not None:
            from treadle.passes.memory.sweep import parse_budgets, plan_budgets

            budgets = parse_budgets(sweep)
            whole, inputs, _, measured = _sources(trace, problem, hardware, options, output)
            _warn_of_size(whole, method)
            plan_budgets(whole, budgets, output, options, inputs, trace or problem, summary, as_json)
            if measured is not None and not as_json:
                typer.echo(f"wrote {measured}, the trace with its times")
            return
        limit = None if budget is None else parse_budget(budget)
        whole, inputs, began, measured = _sources(trace, problem, hardware, options, output)
        if problem is not None and budget is None and not whole.budget_bytes:
            expected = "expected bytes, or a budget by --budget"
            raise InputError(f"found 0, {expected}", where=problem, path="$.budget_bytes")
        _warn_of_size(whole, method)
        started = clock_of(None).began
        with live_line() as show:
            plan = plan_memory(
                whole if limit is None else with_budget(whole, limit, options),
                options=options,
                inputs=inputs,
                on_progress=ProgressLine(show, lambda: time.monotonic() - started),
                on_plan=lambda plan: store.save(plan, output),
                clock=Clock.of(time_limit, began),
            )
    except KeyboardInterrupt:
        raise LimitError("interrupted before a plan was found") from None
    store.save(plan, output)
    note_ending(plan.provenance, time_limit)
    facts = summary(plan)
    if as_json:
        print_json("plan-memory", {**facts, "plan": output} | ({"measured_trace": str(measured)} if measured else {}))
    else:
        typer.echo(describe(facts))
        typer.echo(f"wrote {output}" + (f", and {measured}, the trace with its times" if measured else ""))


def _sources(
    trace: str | None, problem: str | None, hardware: str | None, options: MemoryOptions, output: str
) -> tuple[MemoryProblem, dict[str, InputRef], float, Path | None]:
    """The problem that the files describe, the files, when the time limit begins on time.monotonic's clock (with the
    process, or after a trace was measured), and the trace that was then written next to `output`."""
    from treadle.planner.documents import store
    from treadle.planner.documents.plan import InputRef
    from treadle.planner.documents.trace import Trace
    from treadle.planner.passes.memory.extract.problem import problem_from_trace
    from treadle.planner.passes.memory.problem import MemoryProblem

    began = clock_of(None).began
    if trace is None:
        loaded = store.load(problem or "", MemoryProblem)
        inputs = {"problem": InputRef(file=Path(problem or "").name, digest=store.digest(loaded))}
        return loaded, inputs, began, None
    step, measured = store.load(trace, Trace), None
    if hardware is None and step.source == "torch-aot" and all(op.time_ns is None for op in step.ops):
        from treadle.cli.measured_trace import measured_trace

        step, measured = measured_trace(step, trace, output)
        trace, began = str(measured), time.monotonic()
    inputs = {"trace": InputRef(file=Path(trace).name, digest=store.digest(step))}
    if hardware is not None and step.costs.model == "absent":
        step, inputs["hardware"] = _with_times(step, hardware)
    elif hardware is not None:
        note(f"the trace already has {step.costs.model} times of {step.costs.device}; it keeps them")
    return problem_from_trace(step, 0, hold_gradients=options.hold_gradients), inputs, began, measured


def _warn_of_size(problem: MemoryProblem, method: Method) -> None:
    from treadle.planner.passes.memory.search.rounds import FULL

    if method == "full" and len(problem.fwd) * len(problem.bwd) > FULL:
        note(
            f"the 0-1 program of {len(problem.fwd)} forward and {len(problem.bwd)} backward nodes may find nothing "
            "within the time limit: auto leaves it out at this size"
        )


def _with_times(trace: Trace, hardware: str) -> tuple[Trace, InputRef]:
    from treadle.capture.costs import with_roofline
    from treadle.planner.documents import store
    from treadle.planner.documents.plan import InputRef
    from treadle.probe.resolve import load_hardware

    profile = load_hardware(hardware)
    return with_roofline(trace, profile), InputRef(file=hardware, digest=store.digest(profile))


def summary(plan: Plan[MemoryDecisions]) -> dict[str, Any]:
    """The figures that people ask for first."""
    from treadle.planner.passes.memory.choices import forward_choices, uses
    from treadle.planner.passes.memory.plain import plain_peak, plain_time

    decisions, certificate = plan.decisions, plan.certificate
    ops = [choice for choice in forward_choices(decisions) if decisions.problem.fwd[choice.node].kind == "op"]
    plain_bytes, plain_ns = plain_peak(decisions.problem), plain_time(decisions.problem)
    return {
        "budget_bytes": decisions.problem.budget_bytes,
        "reserve_bytes": decisions.problem.base.get("reserve", 0),
        "peak_bytes": decisions.exact_peak_bytes,
        "store_all_peak_bytes": decisions.store_all_peak_bytes,
        "plain_peak_bytes": plain_bytes,
        "peak_of_plain": decisions.exact_peak_bytes / plain_bytes if plain_bytes else None,
        "time_ns": decisions.objective_ns,
        "store_all_ns": decisions.store_all_ns,
        "plain_ns": plain_ns,
        "time_of_plain": decisions.objective_ns / plain_ns if plain_ns else None,
        "overhead": decisions.objective_ns / max(1, decisions.store_all_ns) - 1,
        "lower_bound_ns": int(certificate.lower_bound),
        "gap": certificate.gap,
        "optimal": certificate.optimal,
        "bound_argument": certificate.argument,
        "bound_holds_for": SCOPES[certificate.scope or "forward order"],
        "forward_ops": len(ops),
        "kept_ops": sum(choice.kept for choice in ops),
        "recomputed_ops": sum(bool(choice.again) for choice in ops),
        "recomputations": sum(len(choice.again) for choice in ops),
        "recomputation_ns": sum(choice.again_ns for choice in ops),
        "uses": [asdict(use) for use in uses(decisions)],
        "method": plan.provenance.method,
        "limit_fired": plan.provenance.limit_fired,
        "interrupted": plan.provenance.interrupted,
    }


def describe(facts: dict[str, Any]) -> str:
    """The summary as a few aligned lines."""
    from treadle.planner.documents.scalars import format_bytes, format_time

    whole, plain = facts["store_all_peak_bytes"], facts["plain_peak_bytes"]

    def shares(count: int, *, named: bool) -> str:
        """`count` as a share of both peaks, which are given as well if `named`."""
        peaks = (("plain PyTorch", plain), ("store-all", whole))
        of = [
            f"{count / max(1, peak):.2f}x of {what}" + (f"'s {format_bytes(peak)}" if named else "")
            for what, peak in peaks
            if peak is not None
        ]
        return f"{format_bytes(count)} ({', '.join(of)})"

    ratio = facts["time_of_plain"]
    of_plain = "" if ratio is None else f"{ratio:.3f}x of plain PyTorch, "
    proof = "proved optimal" if facts["optimal"] else f"gap {facts['gap']:.2%}"
    overhead = round(facts["overhead"], 4) + 0.0  # not -0.00%
    reserve = facts["reserve_bytes"]
    reserved = [("reserve", f"{format_bytes(reserve)}, counted in budget and peaks")] if reserve else []
    again = f"{facts['recomputed_ops']} of {facts['forward_ops']} forward ops"
    rows = [
        ("budget", shares(facts["budget_bytes"], named=True)),
        *reserved,
        ("peak", shares(facts["peak_bytes"], named=False)),
        ("time", f"{format_time(facts['time_ns'])}, {of_plain}{overhead:+.2%} against store-all"),
        ("lower bound", f"{format_time(facts['lower_bound_ns'])}, {proof} for {facts['bound_holds_for']}"),
        ("recomputed", f"{again}, {many(facts['recomputations'], 'extra run')}"),
        *_used(facts["uses"]),
        ("found by", facts["method"]),
    ]
    return "\n".join(f"{name:<13}{text}" for name, text in rows)


def _used(uses: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """A row for each family of implementations that the plan makes use of."""
    from treadle.planner.passes.memory.choices import Use

    title = "uses"
    for family, found in groupby(uses, key=lambda use: use["family"]):
        yield title, f"{family}: {', '.join(str(Use(**use)) for use in found)}"
        title = ""
