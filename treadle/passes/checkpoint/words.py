"""A plan of checkpoints in words and figures: how much memory, how often, and what survives."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions, Policy, PolicyWaste, Survival
from treadle.planner.passes.checkpoint.partition import piece_cost
from treadle.planner.passes.checkpoint.problem import CheckpointProblem, IdleSpan
from treadle.planner.passes.checkpoint.spans import unsteady
from treadle.planner.passes.checkpoint.what_if import CheckpointAnswer, CheckpointQuestion

MOST = 12
"""The most spans that are listed: the longest."""
SPAN_HEAD = ("after", "before", "length", "deviation", "pieces", "bytes", "filled")
SURVIVAL_HEAD = ("lost at once", "a copy of all is left", "of all sets")
WASTE_HEAD = ("checkpoints", "one takes", "every", "software failure", "hardware failure", "trains")
POLICIES: dict[Policy, str] = {
    "memory": "in memory",
    "persistent": "on storage",
    "persistent, often": "on storage, back to back",
}


def summary(plan: Plan[CheckpointDecisions]) -> dict[str, Any]:
    """The figures that people ask for first."""
    decisions, proof = plan.decisions, plan.certificate
    problem = decisions.problem
    return {
        "machines": problem.machines,
        "devices": problem.devices,
        "copies": problem.copies,
        "state_bytes": problem.state_bytes,
        "placement": decisions.placement,
        "host_bytes": decisions.host_bytes,
        "host_bytes_limit": problem.host_bytes,
        "buffer_bytes": problem.buffer_bytes,
        "variant": decisions.variant,
        "every": decisions.every,
        "iteration_ns": problem.iteration_ns,
        "checkpoint_ns": decisions.checkpoint_ns,
        "overflow_ns": decisions.overflow_ns,
        "pieces": len(decisions.pieces),
        "spans": len(problem.spans),
        "idle_ns": sum(span.length_ns for span in problem.spans),
        "filled_ns": sum(filled_ns(decisions)),
        "survival": to_builtins(decisions.survival),
        "waste": to_builtins(decisions.waste),
        "time_ns": decisions.time_ns,
        "lower_bound_ns": int(proof.lower_bound),
        "gap": proof.gap,
        "optimal": proof.optimal,
        "bound_argument": proof.argument,
        "limit_fired": plan.provenance.limit_fired,
        "interrupted": plan.provenance.interrupted,
    }


def filled_ns(decisions: CheckpointDecisions) -> list[int]:
    """ns of each span that pieces take."""
    cost, found = piece_cost(decisions.problem, decisions.variant), [0] * len(decisions.problem.spans)
    for piece in decisions.pieces:
        found[piece.span] += cost(piece.bytes)
    return found


def lines(plan: Plan[CheckpointDecisions]) -> list[tuple[str, str]]:
    """Name and text of each line that describes the plan."""
    decisions, proof = plan.decisions, plan.certificate
    problem, idle = decisions.problem, sum(span.length_ns for span in decisions.problem.spans)
    held = f"two versions of {many(problem.copies, 'state')} of {many(problem.devices, 'device')}"
    hold = "holds" if problem.copies == 1 else "hold"
    verdict = "proved optimal" if proof.optimal else f"gap {proof.gap:.2%}"
    domains = f" in {many(len({*problem.domains}), 'failure domain')}" if problem.domains else ""
    return [
        ("states", f"{format_bytes(problem.state_bytes)} on each of {many(problem.devices, 'device')} of "
         f"{many(problem.machines, 'machine')}{domains}"),
        ("holders", f"{many(problem.copies, 'machine')} {hold} each state, placed as {decisions.placement}"),
        ("host memory", f"{format_bytes(decisions.host_bytes)} of a machine, {held}{_limit(problem)}"),
        ("device", f"{format_bytes(problem.buffer_bytes)} of memory in {many(problem.buffers, 'buffer')}"),
        ("how often", f"{often(decisions)}; whole after {format_time(decisions.checkpoint_ns)}"),
        ("iteration", f"{format_time(problem.iteration_ns)}, and {_longer(decisions)}"),
        ("links", f"idle for {format_time(idle)} in {many(len(problem.spans), 'span')}, busy for "
         f"{format_time(sum(filled_ns(decisions)))} with {many(len(decisions.pieces), 'piece')}"),
        ("lower bound", f"{format_time(int(proof.lower_bound))} of {format_time(decisions.time_ns)} an iteration with "
         f"what failures waste, {verdict}: {proof.argument}"),
    ]  # fmt: skip


def span_rows(plan: Plan[CheckpointDecisions]) -> list[tuple[object, ...]]:
    """The longest spans in their order, as SPAN_HEAD."""
    decisions = plan.decisions
    spans, taken = decisions.problem.spans, filled_ns(decisions)
    longest = sorted(range(len(spans)), key=lambda place: (-spans[place].length_ns, place))[:MOST]
    sizes = [[piece.bytes for piece in decisions.pieces if piece.span == place] for place in range(len(spans))]
    return [
        (spans[place].after, spans[place].before, format_time(spans[place].length_ns),
         format_time(spans[place].spread_ns), len(sizes[place]), format_bytes(sum(sizes[place])),
         _share(taken[place], spans[place]))
        for place in sorted(longest)
    ]  # fmt: skip


def survival_rows(plan: Plan[CheckpointDecisions]) -> list[tuple[object, ...]]:
    """How likely a copy of every state is left, as SURVIVAL_HEAD."""
    decisions = plan.decisions
    return [(_lost(each), chance(each, decisions), _counted(each)) for each in decisions.survival]


def waste_rows(plan: Plan[CheckpointDecisions]) -> list[tuple[object, ...]]:
    """What a failure wastes under each policy, as WASTE_HEAD."""
    decisions = plan.decisions
    return [
        (POLICIES[each.policy], format_time(each.checkpoint_ns), format_time(each.interval_ns),
         format_time(each.software_ns), hardware_wastes(decisions, each), trains(decisions, each))
        for each in decisions.waste
    ]  # fmt: skip


def certain(each: Survival, decisions: CheckpointDecisions) -> bool:
    """Whether a copy is left whatever is lost. For machines fewer than copies it is, and for no more, since the loss of
    all holders of a state is among the sets, however small its share."""
    return each.kept == each.sets if each.of == "domains" else each.lost < decisions.problem.copies


def hardware_wastes(decisions: CheckpointDecisions, each: PolicyWaste) -> str:
    """What the loss of a machine wastes."""
    return "all training" if unrecoverable(decisions.problem) else format_time(each.hardware_ns)


def trains(decisions: CheckpointDecisions, each: PolicyWaste) -> str:
    """The share of the time that trains; none is known where the loss of a machine ends the training."""
    return "-" if unrecoverable(decisions.problem) else f"{each.ratio:.2%}"


def unrecoverable(problem: CheckpointProblem) -> bool:
    """Whether the loss of a machine leaves its state nowhere."""
    return problem.copies == 1 and problem.persistent is None


def outcome(decisions: CheckpointDecisions) -> dict[str, Any]:
    """The figures by which other decisions are compared."""
    return {
        "host_bytes": decisions.host_bytes,
        "every": decisions.every,
        "overflow_ns": decisions.overflow_ns,
        "survival": to_builtins(decisions.survival),
        "waste": to_builtins(decisions.waste),
        "time_ns": decisions.time_ns,
    }


def answer_row(asked: CheckpointQuestion, answer: CheckpointAnswer) -> tuple[object, ...]:
    """The value, memory, interval, by how much an iteration is longer, how likely two machines may be lost, what
    failures waste, and the share of the time that trains in memory and on storage."""
    decisions, memory = answer.decisions, answer.decisions.waste[0]
    value = answer.value if asked.name == "copies" else f"{format_bytes(answer.value)}/s"
    two = [chance(each, decisions) for each in decisions.survival if each.lost == 2 and each.of == "machines"]
    stored = [each.ratio for each in decisions.waste[1:]]
    return (
        value, format_bytes(decisions.host_bytes), decisions.every, format_time(decisions.overflow_ns),
        two[0] if two else "-", format_time(memory.software_ns), hardware_wastes(decisions, memory),
        trains(decisions, memory), f"{max(stored):.2%}" if stored else "-",
    )  # fmt: skip


def remarks(problem: CheckpointProblem) -> list[str]:
    """What the problem leaves open, one line each."""
    found = []
    if unrecoverable(problem):
        found.append("the loss of a machine ends the training: no other has its state, and --storage is not named")
    if problem.host_bytes is None:
        found.append("the profile does not state the memory of a host, so none is checked: --memory does")
    if varying := unsteady(problem.spans, problem.fill_ppm):
        spans = f"{many(varying, 'idle span')} of {len(problem.spans)}"
        found.append(f"{spans} vary by more than --fill leaves of them, so that pieces may delay the training")
    return found


def _limit(problem: CheckpointProblem) -> str:
    return "" if problem.host_bytes is None else f"; it has {format_bytes(problem.host_bytes)}"


def often(decisions: CheckpointDecisions) -> str:
    """How often there is a checkpoint."""
    return "every iteration" if decisions.every == 1 else f"every {decisions.every} iterations"


def _longer(decisions: CheckpointDecisions) -> str:
    if not decisions.overflow_ns:
        return "no longer with a checkpoint"
    share = decisions.overflow_ns / decisions.problem.iteration_ns
    return f"{format_time(decisions.overflow_ns)} ({share:.1%}) longer with a checkpoint"


def _share(taken_ns: int, span: IdleSpan) -> str:
    return f"{taken_ns / span.length_ns:.0%}" if span.length_ns else "-"


def _lost(each: Survival) -> str:
    return many(each.lost, "machine" if each.of == "machines" else "failure domain")


def chance(each: Survival, decisions: CheckpointDecisions) -> str:
    """The probability, rounded to neither certainty."""
    text = f"{each.probability:.2%}"
    if text == "100.00%" and not certain(each, decisions):
        return "> 99.99%"
    return "< 0.01%" if text == "0.00%" and each.probability else text


def _counted(each: Survival) -> str:
    if each.kept is not None and each.sets is not None:
        return f"{each.kept:,} of {each.sets:,}"
    if each.low is not None and each.high is not None:
        return f"{each.low:.2%} to {each.high:.2%}, estimated"
    return "exact"
