"""Iterations with a checkpoint each: in memory in four variants, and by `torch.save`, between hosts of a lab."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import get_args

from benchmarks.checkpoint.cluster import Cluster, lab_of
from benchmarks.checkpoint.curves import Curve, difference, iteration_ns
from benchmarks.checkpoint.training import RankWork, forkable
from benchmarks.common import Row, Table, machine, progress
from treadle.lab.state import Lab
from treadle.planner.documents import store
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.events import happens
from treadle.planner.passes.checkpoint.partition import transfer_ns
from treadle.planner.passes.checkpoint.planning import CheckpointOptions, plan_checkpoint
from treadle.planner.passes.checkpoint.problem import (
    VERSION,
    CheckpointProblem,
    IdleSpan,
    TrainingMessage,
    Variant,
)

MACHINES, STEPS = 4, 13
RATE = 50e6
"""Bits per second of each host's link."""
COMPUTE_S = 1.5
"""Stands for the computation of a device, which leaves the cores of this machine to the transfers."""
STATE_BYTES = 2 << 20
WITHIN = 1.02
HOW = (
    f"{MACHINES} hosts of a lab with {RATE / 1e6:g} Mbit/s each, a small GPT with AdamW; medians of rank 0 over "
    f"{STEPS - 5} iterations; predicted: the iteration without checkpoints as measured, with what the plan adds"
)


def tables() -> Iterator[Table]:
    """Iterations with a checkpoint each between hosts of a lab: four variants in memory, torch.save, and none."""
    forkable()
    with TemporaryDirectory() as folder, lab_of(MACHINES + 1, RATE, Path(folder)) as lab:
        yield Table("ms of an iteration with a checkpoint", list(measured(lab, Path(folder))), (HOW, machine()))


def measured(lab: Lab, folder: Path, variants: Sequence[Variant] = get_args(Variant)) -> Iterator[Row]:
    work = RankWork(0, 1, "", "", STEPS, folder, compute_s=COMPUTE_S)
    plain = trained(lab, folder / "none", work)
    none_ns = iteration_ns(plain[0])
    yield row("none", none_ns, none_ns, None, None, "")
    for variant in variants:
        progress(variant)
        plan = plan_checkpoint(problem(round(none_ns)), options=CheckpointOptions(variant=variant, every=1))
        file = folder / f"{variant}.plan.json"
        store.save(plan, file)
        found = trained(lab, folder / variant, replace(work, plan=file))
        predicted = happens(plan.decisions).makespan
        yield row(
            f"in memory, {variant}",
            iteration_ns(found[0]),
            none_ns,
            predicted,
            whole_ns(plan.decisions),
            difference(plain, found),
        )
    progress("torch.save")
    (folder / "disk").mkdir()
    found = trained(lab, folder / "save", replace(work, disk=folder / "disk"))
    yield row("torch.save", iteration_ns(found[0]), none_ns, None, median(found[0].saves_ns), difference(plain, found))


def row(name: str, ns: float, none_ns: float, predicted_ns: float | None, whole_ns: float | None, wrong: str) -> Row:
    return {
        "checkpoints": name,
        "ms": ns / 1e6,
        "predicted ms": None if predicted_ns is None else predicted_ns / 1e6,
        "x none": ns / none_ns,
        "within 2 %": "yes" if ns <= WITHIN * none_ns else "no",
        "ms of one": None if whole_ns is None else whole_ns / 1e6,
        "losses": wrong or "equal",
    }


def whole_ns(decisions: CheckpointDecisions) -> int:
    """How long the links carry one checkpoint, as planned."""
    problem = decisions.problem
    return sum(problem.alpha_ns + transfer_ns(piece.bytes, problem.link_rate) for piece in decisions.pieces)


def trained(lab: Lab, folder: Path, work: RankWork) -> list[Curve]:
    """The curves of a training without faults."""
    folder.mkdir()
    with Cluster(lab, MACHINES, work, folder) as cluster:
        if work.plan is not None:
            cluster.start_store()
            cluster.start_agents()
        cluster.start_ranks()
        cluster.finish()
        return cluster.curves()


def problem(none_ns: int) -> CheckpointProblem:
    """Links are idle while devices compute, then carry the gradients."""
    begin = round(COMPUTE_S * 1e9)
    return CheckpointProblem(
        version=VERSION,
        name="iterations",
        machines=MACHINES,
        copies=2,
        devices=1,
        state_bytes=STATE_BYTES,
        iteration_ns=none_ns,
        messages=(TrainingMessage(name="allreduce 0", start_ns=begin, end_ns=none_ns),),
        spans=(
            IdleSpan(after="begin", before="allreduce 0", length_ns=begin),
            IdleSpan(after="allreduce 0", before="update", length_ns=0),
        ),
        alpha_ns=100_000,
        link_rate=round(RATE / 8),
        buffer_bytes=STATE_BYTES,
        buffers=8,
    )
