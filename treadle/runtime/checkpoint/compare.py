"""A checkpoint plan on this machine: ranks and agents as processes, a small model, the plan's machines and holders. All
variants next to each other, every piece compared, and a machine that is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, get_args

from msgspec.structs import replace

from treadle.codegen import emit
from treadle.codegen.targets import PLAN_NAME
from treadle.host.scratch import scratch
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.errors import CheckFailed, InfeasibleError, InputError
from treadle.planner.passes import pass_of, require_pass
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.planning import CheckpointOptions, plan_checkpoint
from treadle.planner.passes.checkpoint.problem import CheckpointProblem, Variant
from treadle.planner.passes.checkpoint.spans import JobTimeline, timeline_of
from treadle.runtime.checkpoint.links_here import PieceLink, measured_link
from treadle.runtime.checkpoint.staged import LostMachine, PlannedHere, StagedRun
from treadle.runtime.checkpoint.started import PERIOD, TIMEOUT

if TYPE_CHECKING:
    from treadle.runtime.checkpoint.small_training import PlainRun, VariantRun

MOST_RANKS = 16
STATE_BYTES = 4 << 20
"""The most that the states of the small model take on a rank."""
ITERATIONS_PER_STEP = 6
"""Iterations of a run for each of `--steps`."""
LEAST_PIECE = 4096


def run_folder(folder: Path, *, steps: int = 3, timeout: float | None = None) -> dict[str, Any]:
    """Train a small model under the plan in `folder`, with its machines, holders and devices as processes here.

    The model's iterations are measured without checkpoints first, and planned for with the plan's machines; then each
    variant checkpoints every iteration. Returned: `iteration_ns` without checkpoints; by variant the predicted and the
    measured iteration, how long the update waited, and how many `pieces` arrived and are `equal`, byte for byte; what
    followed when a machine was `lost`, and whether the losses are those of the run without checkpoints, bit by bit;
    `findings`, a sentence for each promise that did not hold.

    Raises InputError for a folder that is not as it was generated and for more than MOST_RANKS ranks, CheckFailed for a
    plan that fails its check and processes that fail, MissingBackendError without g++, LimitError after `timeout`
    seconds without an end of the ranks.
    """
    emit.read(folder)
    plan = require_pass(store.load(folder / PLAN_NAME, Plan), CheckpointDecisions, str(folder / PLAN_NAME))
    if failed := pass_of(plan).findings(plan.decisions):
        raise CheckFailed(f"{folder / PLAN_NAME}: not run, its check failed", tuple(failed))
    problem = plan.decisions.problem
    ranks = problem.machines * problem.devices
    if ranks > MOST_RANKS:
        raise InputError(f"found {many(ranks, 'rank')}, at most {MOST_RANKS} run here; simulate it", where=str(folder))
    aim, link = min(problem.state_bytes, STATE_BYTES), measured_link()

    def planned(plain: Sequence[PlainRun]) -> PlannedHere:
        return planned_variants(problem_here(problem, plain, link), plan)

    with scratch() as place, StagedRun(problem, planned, place, (aim, ITERATIONS_PER_STEP * steps)) as run:
        run.train(timeout)
        lost = run.train_again(timeout)
    return _result(run, lost, link)


def problem_here(problem: CheckpointProblem, plain: Sequence[PlainRun], link: PieceLink) -> CheckpointProblem:
    """The problem of the small model: the plan's machines, the iterations that were measured, the links here."""
    machines = [each.iterations for each in plain[:: problem.devices]]
    timeline: JobTimeline = timeline_of(machines, link.alpha_ns, "the small model")
    state_bytes = max(each.state_bytes for each in plain)
    buffer_bytes = problem.buffer_bytes * state_bytes // problem.state_bytes  # as large a share of the state
    return replace(
        problem,
        name=f"{problem.name} here",
        state_bytes=state_bytes,
        iteration_ns=timeline.iteration_ns,
        messages=timeline.messages,
        spans=timeline.spans,
        alpha_ns=link.alpha_ns,
        link_rate=link.rate,
        copy_rate=None,
        buffer_bytes=max(LEAST_PIECE * problem.buffers, buffer_bytes),
        host_bytes=None,
    )


def planned_variants(here: CheckpointProblem, plan: Plan[CheckpointDecisions]) -> PlannedHere:
    """A plan with a checkpoint in each iteration for every variant, and why there is none for the others."""
    placement, seed = plan.decisions.placement, plan.provenance.options.get("seed", 0)
    found: dict[Variant, Plan[CheckpointDecisions]] = {}
    refused: dict[Variant, str] = {}
    for variant in get_args(Variant):
        options = CheckpointOptions(placement=placement, variant=variant, every=1, seed=int(seed))
        try:
            found[variant] = plan_checkpoint(here, options=options)
        except InfeasibleError as error:
            refused[variant] = str(error)
    return PlannedHere(found, refused, found.get(plan.decisions.variant) or found["planned"])


def _result(run: StagedRun, lost: LostMachine, link: PieceLink) -> dict[str, Any]:
    here, plain = run.planned.attached.decisions, [each.plain for each in run.measured]
    first = [each[0].losses for each in plain]
    findings = []
    found: dict[str, Any] = {name: {"refused": why} for name, why in run.planned.refused.items()}
    without = _slowest([[each.end_ns for run in runs for each in run.iterations] for runs in plain])
    for place, (name, planned) in enumerate(run.planned.variants.items()):
        runs = [each.variants[place] for each in run.measured]
        found[name] = _variant(planned.decisions, runs, without)
        if any(one.losses != losses for each, losses in zip(runs, first, strict=True) for one in each):
            findings.append(f"with the variant {name} the losses are not those without checkpoints")
        if (pieces := found[name]["pieces"]) != (equal := found[name]["equal"]):
            findings.append(f"with the variant {name} {pieces - equal} of {pieces} pieces have other bytes")
    same = lost.losses == first[0]
    if not same:
        findings.append("the losses after the loss of a machine are not those of an uninterrupted run")
    if lost.source != "memory":
        findings.append(f"training went on from the {lost.source}, not from memory")
    return {
        "machines": here.problem.machines,
        "devices": here.problem.devices,
        "copies": here.problem.copies,
        "state_bytes": here.problem.state_bytes,
        "link": {"alpha_ns": link.alpha_ns, "rate": link.rate},
        "iteration_ns": without,
        "spans": [{"after": each.after, "length_ns": each.length_ns} for each in here.problem.spans],
        "variants": {name: found[name] for name in get_args(Variant)},
        "lost": {
            **lost._asdict(),
            "phases": phases(lost, here.problem),
            "losses": len(lost.losses),
            "equal": same,
        },
        "findings": findings,
    }


def _variant(decisions: CheckpointDecisions, ranks: Sequence[Sequence[VariantRun]], without: int) -> dict[str, Any]:
    """`rest_ns`: by how much an iteration is longer that neither its begin nor the wait of its update explains."""

    def slowest(times: Callable[[VariantRun], list[int]]) -> int:
        return _slowest([[each for run in runs for each in times(run)] for runs in ranks])

    measured = slowest(lambda run: run.iteration_ns)
    kept, drained = slowest(lambda run: run.kept_ns), slowest(lambda run: run.drained_ns)
    return {
        "predicted_ns": without + decisions.overflow_ns,
        "measured_ns": measured,
        "kept_ns": kept,
        "drained_ns": drained,
        "rest_ns": measured - without - kept - drained,
        "pieces": sum(run.pieces for runs in ranks for run in runs),
        "equal": sum(run.equal for runs in ranks for run in runs),
    }


def phases(lost: LostMachine, here: CheckpointProblem) -> dict[str, dict[str, int | None]]:
    """What a recovery took: ns predicted and measured, None for what has no prediction or what no one has said."""
    fetch = here.alpha_ns + -(-here.devices * here.state_bytes * 10**9 // here.link_rate)
    predicted = {"detect": round((TIMEOUT + PERIOD) * 1e9), "fetch": fetch, "step": here.iteration_ns}
    if here.machines == 1:
        del predicted["detect"], predicted["fetch"]
    return {
        name: {"predicted_ns": predicted.get(name), "measured_ns": measured} for name, measured in lost.phases.items()
    }


def _slowest(times: Sequence[Sequence[int]]) -> int:
    """The median over iterations of the time of the slowest rank."""
    return int(median(max(each) for each in zip(*times, strict=True)))
