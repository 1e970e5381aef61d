"""`treadle plan checkpoint`: which machines hold copies of which state, and in which idle spans they are sent there."""

from __future__ import annotations

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
    seconds,
    share,
    size_option,
    time_limit_option,
    whole,
)
from treadle.cli.output import note, print_table
from treadle.planner.passes.checkpoint.decisions import Placing
from treadle.planner.passes.checkpoint.problem import BUFFER_BYTES, MOST_MACHINES, Variant

if TYPE_CHECKING:
    from treadle.planner.documents.plan import Plan
    from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions


def command(
    *,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="A training step, or a profile of PyTorch with the messages of several steps; may be repeated, one of "
            "each machine.",
        ),
    ] = None,
    states: Annotated[
        int | None,
        size_option(
            "--states", "Weights and states of the optimizer on one device. [default: those of the trace]", least=1
        ),
    ] = None,
    problem: Annotated[
        str | None, typer.Option(metavar="FILE", help="A whole problem written by hand, with machines and spans.")
    ] = None,
    hardware: Annotated[str | None, hardware_option("The cluster; states are those of its devices.")] = None,
    nodes: Nodes = None,
    copies: Annotated[
        int, whole("Machines that hold the state of each, itself among them.", least=1, most=MOST_MACHINES)
    ] = 2,
    failures_per_day: Annotated[
        float | None, positive("Failures of the job in a day. [default: 1.5 for each 100 machines]")
    ] = None,
    iteration: Annotated[
        float | None, seconds("--iteration", "Without a trace: how long an iteration takes. [default: as a checkpoint]")
    ] = None,
    collectives: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A selection of planned allreduces, which exchange the gradients of a step."),
    ] = None,
    memory: Annotated[
        int | None,
        size_option(
            "--memory", "Host memory that checkpoints may take. [default: all that the profile states]", least=1
        ),
    ] = None,
    domain: Annotated[
        int | None,
        whole("Machines in a row that fail together. [default: those of a rack in the hardware, or 1]", least=1),
    ] = None,
    standby: Annotated[int, whole("Machines that stand by.", least=0)] = 0,
    storage: Annotated[
        int | None,
        size_option("--storage", "Bytes per second of storage for all machines together, to compare.", least=1),
    ] = None,
    storage_interval: Annotated[
        float, seconds("--storage-interval", "Time between checkpoints on the storage.")
    ] = 10800.0,
    placement: Annotated[
        Placing | None, typer.Option(help="How holders are placed. [default: the one that survives most]")
    ] = None,
    variant: Annotated[
        Variant,
        typer.Option(help="When copies are sent; others than planned show what their pieces are good for."),
    ] = "planned",
    every: Annotated[int | None, whole("Iterations between checkpoints. [default: what loses least]", least=1)] = None,
    fill: Annotated[float, share("How much of an idle span may be filled.")] = 0.9,
    buffer: Annotated[
        int | None, size_option("--buffer", "Memory of a device for what arrives. [default: 128 MiB]", least=1)
    ] = None,
    buffers: Annotated[int, whole("Parts of this memory, which take turns.", least=1)] = 4,
    what_if: Annotated[
        str | None,
        typer.Option(
            metavar="PART=VALUES",
            help="Also plan with other numbers of copies, such as copies=1..4, or compare with storage of other rates, "
            "such as storage=1GB..16GB.",
        ),
    ] = None,
    time_limit: Annotated[
        float,
        time_limit_option("Seconds from the start of the command after which the best placement so far is taken."),
    ] = 60.0,
    output: Annotated[str, document_option("plan", "The plan to write.")],
    as_json: Json = False,
) -> None:
    """Plan checkpoints in the memory of other machines: how much memory, how often, and what survives.

    \b
      treadle plan checkpoint --trace step.json --hardware cluster-25gbe --nodes 16 -o plan.json
      treadle plan checkpoint --states 9.4GB --iteration 62 --hardware ndv4 --nodes 16 -o plan.json

    Every iteration the state of each machine goes to others, in pieces that fill the idle spans of the links, so that
    a job loses an iteration or two when machines fail. docs/checkpoint.md has all of it.
    """
    if problem is not None and (trace or states or hardware or nodes or iteration or collectives):
        raise UsageError("--problem names its machines and spans, so it goes without options for them")
    if problem is None and not trace and states is None:
        raise UsageError("give --trace, --states or --problem")
    if problem is None and hardware is None:
        raise UsageError("--trace and --states need --hardware, for machines and links")
    if trace and iteration is not None:
        raise UsageError("--iteration goes without --trace, which shows how long an iteration takes")
    if collectives is not None and not trace:
        raise UsageError("--collectives belongs to --trace")
    clock = clock_of(time_limit)

    from treadle.passes.checkpoint.inputs import by_hand, from_states, from_traces
    from treadle.passes.checkpoint.words import answer_row, outcome, remarks, summary
    from treadle.planner.documents import store
    from treadle.planner.passes.checkpoint.extract import CheckpointSetup
    from treadle.planner.passes.checkpoint.planning import CheckpointOptions, plan_checkpoint
    from treadle.planner.passes.checkpoint.problem import Persistent
    from treadle.planner.passes.checkpoint.what_if import answers_to, question_of

    asked = None if what_if is None else question_of(what_if)
    interval_ns = round(storage_interval * 10**9)
    setup = CheckpointSetup(
        copies=copies,
        failures_per_day=failures_per_day,
        fill=fill,
        buffer_bytes=BUFFER_BYTES if buffer is None else buffer,
        buffers=buffers,
        host_bytes=memory,
        domain=domain,
        standby=standby,
        persistent=None if storage is None else Persistent(rate=storage, interval_ns=interval_ns),
    )
    if problem is not None:
        given, inputs = by_hand(problem)
    elif trace:
        given, inputs = from_traces(trace, states, hardware or "", nodes, collectives, setup)
    else:
        length = None if iteration is None else round(iteration * 10**9)
        given, inputs = from_states(states or 0, length, hardware or "", nodes, setup)
    options = CheckpointOptions(placement=placement, variant=variant, every=every)
    plan = plan_checkpoint(given, options=options, clock=clock, inputs=inputs)
    store.save(plan, output)
    note_ending(plan.provenance, time_limit)
    for line in remarks(given):
        note(line)
    answers = () if asked is None else answers_to(asked, plan.decisions, options, interval_ns, clock, note)
    if as_json:
        facts = summary(plan)
        if asked is not None:
            facts["what_if"] = [{asked.name: each.value, **outcome(each.decisions)} for each in answers]
        print_json("plan-checkpoint", {**facts, "plan": output})
        return
    describe(plan)
    if asked is not None:
        head = (asked.name, "host memory", "every", "longer", "2 lost", "software failure", "hardware failure",
                "trains", "from storage")  # fmt: skip
        print_table(f"with other {asked.name}", head, [answer_row(asked, each) for each in answers])
    typer.echo(f"wrote {output}")


def describe(plan: Plan[CheckpointDecisions]) -> None:
    """Print what the plan takes, what it survives, and what failures cost."""
    from treadle.passes.checkpoint import words

    for name, text in words.lines(plan):
        typer.echo(f"{name:<13}{text}")
    print_table("idle spans", words.SPAN_HEAD, words.span_rows(plan))
    print_table("what survives", words.SURVIVAL_HEAD, words.survival_rows(plan))
    print_table("time that a failure wastes", words.WASTE_HEAD, words.waste_rows(plan))
