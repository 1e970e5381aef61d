"""`treadle plan tiling`: along which axes arrays and tensors are cut over a mesh of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from treadle.cli.json_output import print_json
from treadle.cli.lazy import UsageError
from treadle.cli.limit import clock_of, note_ending
from treadle.cli.options import Json, Nodes, document_option, hardware_option, size_option, time_limit_option
from treadle.cli.output import note, print_table
from treadle.planner.passes.tiling.decisions import AskedMethod
from treadle.planner.passes.tiling.problem import CostModel

if TYPE_CHECKING:
    from treadle.planner.documents.plan import Plan
    from treadle.planner.passes.tiling.decisions import TilingDecisions

STATES = {"adam": 2, "momentum": 1, "sgd": 0}
"""What an optimizer keeps of each weight, in weights."""


def command(
    *,
    program: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROGRAM.py[:FUNCTION]]", help="A program of treadle.array, which is run to capture its operators."
        ),
    ] = None,
    trace: Annotated[str | None, typer.Option(metavar="FILE", help="A captured step of a model.")] = None,
    problem: Annotated[str | None, typer.Option(metavar="FILE", help="A problem of tiling.")] = None,
    mesh: Annotated[
        str | None,
        typer.Option(metavar="MESH", help="Workers along each axis, such as 8 or 2x4; the last axis has neighbours."),
    ] = None,
    hardware: Annotated[str | None, hardware_option("What bytes cost along the axes, and the work of a model.")] = None,
    nodes: Nodes = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure transfers, and work of a model, on processes over gloo.")
    ] = False,
    memory_per_worker: Annotated[
        int | None, size_option("--memory-per-worker", "Most that one worker may hold.", least=1)
    ] = None,
    model: Annotated[
        CostModel | None,
        typer.Option(
            help="Elements by the estimates of the paper, elements really moved, or time. [default: time with hardware "
            "for models and meshes of several axes, else exact]"
        ),
    ] = None,
    as_published: Annotated[
        bool, typer.Option("--as-published", help="The greedy method and the costs of the paper.")
    ] = False,
    tiling: Annotated[
        AskedMethod,
        typer.Option(help="How tilings are found; row, column and worst are for comparison."),
    ] = "auto",
    dup_budget: Annotated[
        int | None, size_option("--dup-budget", "Most bytes that second copies of arrays may take.")
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option(metavar="ARRAY=S0,R", help="Tiling of an array or of a parameter; may be repeated."),
    ] = None,
    optimizer: Annotated[
        Literal["adam", "momentum", "sgd"], typer.Option(help="Whose states count as memory of a model's weights.")
    ] = "adam",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a model with an operator that has no rule.")] = False,
    what_if: Annotated[
        str | None,
        typer.Option(
            metavar="PART=VALUES",
            help="Also plan with other meshes, such as mesh=1x8..8x1, or other memory, such as memory=8GiB..64GiB.",
        ),
    ] = None,
    time_limit: Annotated[
        float, time_limit_option("Seconds from the start of the command after which the best plan so far is taken.")
    ] = 60.0,
    output: Annotated[str, document_option("plan", "The plan to write.")],
    as_json: Json = False,
) -> None:
    """Plan along which axes each array of a program, or tensor of a model, is cut.

    \b
      treadle plan tiling program.py --mesh 8 -o plan.json
      treadle plan tiling --trace step.json --mesh 2x4 --hardware ndv4 --memory-per-worker 16GiB -o plan.json

    An operator's cost depends on how its arrays are cut, so all are chosen together. docs/tiling.md has all of it.
    """
    if sum(each is not None for each in (program, trace, problem)) != 1:
        raise UsageError("give a program, --trace or --problem, and one of them only")
    if problem is None and mesh is None:
        raise UsageError("give --mesh, the workers along each axis such as 2x4")
    if nodes is not None and hardware is None:
        raise UsageError("--nodes belongs to --hardware")
    if measure and mesh is None:
        raise UsageError("--measure belongs to --mesh")
    if as_published and tiling not in ("auto", "greedy"):
        raise UsageError("--as-published is a method, so it goes without --tiling")
    if as_published and trace is not None:
        raise UsageError("--as-published is of the paper's operators, so it goes without --trace")
    if trace is None and strict:
        raise UsageError("--strict belongs to --trace, whose operators need rules")
    clock = clock_of(time_limit)

    from treadle.passes.tiling import inputs
    from treadle.passes.tiling.meshes import mesh_of
    from treadle.passes.tiling.what_if import answers_to, question_of
    from treadle.passes.tiling.words import answer_head, answer_row, outcome, summary
    from treadle.planner.documents import store
    from treadle.planner.passes.tiling.planning import TilingOptions, plan_tiling
    from treadle.probe.resolve import load_hardware

    asked = None if what_if is None else question_of(what_if)
    setup = inputs.TilingSetup(
        mesh=None if mesh is None else mesh_of(mesh),
        hardware=None if hardware is None else load_hardware(hardware, nodes),
        measured=measure,
        model="seed" if as_published and model is None else model,
        memory_bytes=memory_per_worker,
        dup_bytes=dup_budget,
        fixed=tuple(fix or ()),
        states=STATES[optimizer],
        strict=strict,
    )
    if trace is not None:
        given = inputs.from_trace(trace, setup, hardware)
    elif problem is not None:
        given = inputs.from_problem(problem, setup, hardware)
    else:
        given = inputs.from_program(program or "", setup, hardware)
    options = TilingOptions(method="greedy" if as_published else tiling)
    first = given.on(None)
    if measure:  # takes as long as the machine lets it, and leaves the search its time
        clock = clock_of(time_limit)
    if given.unruled:
        note(f"replicated, since there is no rule of it: {inputs.without_rules(given.unruled)}")
    shares = 1 if asked is None else 1 + len(asked.meshes) + len(asked.sizes)
    plan = plan_tiling(first, options=options, clock=clock.share(shares), inputs=given.inputs)
    store.save(plan, output)
    note_ending(plan.provenance, time_limit)
    answers = () if asked is None else answers_to(asked, first, given.on, options, clock, note)
    if as_json:
        facts = {**summary(plan), "unruled": dict(given.unruled)}
        if asked is not None:
            facts["what_if"] = [{asked.name: each.value, **outcome(each.decisions)} for each in answers]
        print_json("plan-tiling", {**facts, "plan": output})
        return
    describe(plan)
    if asked is not None:
        print_table(f"with other {asked.name}", answer_head(asked), [answer_row(each) for each in answers])
    typer.echo(f"wrote {output}")


def describe(plan: Plan[TilingDecisions]) -> None:
    """Print how arrays are cut, what is moved, and what that takes."""
    from treadle.passes.tiling import words

    for name, text in words.lines(plan):
        typer.echo(f"{name:<13}{text}")
    print_table("arrays given and returned", words.ARRAY_HEAD, words.array_rows(plan))
    print_table("moved between workers", words.TRANSFER_HEAD, words.transfer_rows(plan))
