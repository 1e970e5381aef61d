"""Runs a folder that `treadle generate` made of a fusion plan, and compares it with the reference interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from treadle.codegen import emit
from treadle.codegen.fusion.generate import files_of, lowered_of
from treadle.codegen.fusion.lower import Lowered
from treadle.codegen.targets import PLAN_NAME
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes import as_pass
from treadle.planner.passes.fusion.counts import counts
from treadle.planner.passes.fusion.decisions import FusionDecisions
from treadle.runtime.fusion.build import MAIN, build
from treadle.runtime.fusion.compare import compare
from treadle.runtime.fusion.data import Kind
from treadle.runtime.fusion.runs import TIMEOUT_SECONDS, Runs
from treadle.runtime.joined import StartedRank
from treadle.runtime.native_build import Target

Backend = Literal["cpu", "fibers", "cuda"]
TARGETS: dict[Backend, Target] = {"cpu": "process", "fibers": "fibers", "cuda": "cuda"}
KINDS: tuple[Kind, ...] = ("integers", "floats")
MOST_FIBERS = 16
"""Ranks that share one process."""
MOST_PROCESSES = 64


@dataclass(frozen=True)
class Compared:
    """One comparison. `sent` elements of each rank to its group, `sent_on` to the next one, `traffic` loaded and
    stored, without products, all of the rank with most; `planned_*` are those of the plan. `undecided`:
    operations that jump, and how many of their elements are so close to it that either side is right."""

    data: Kind
    runs: int
    bits: bool
    problems: tuple[str, ...]
    undecided: tuple[str, ...]
    seconds: float
    planned_seconds: float
    sent: int
    sent_on: int
    traffic: int
    planned_sent: float
    planned_sent_on: float
    planned_traffic: float

    @property
    def good(self) -> bool:
        return not self.problems


def run_folder(
    folder: Path | str,
    backend: Backend = "cpu",
    *,
    repeats: int = 5,
    timeout: float | None = None,
    started: StartedRank | None = None,
) -> list[Compared]:
    """Run the schedule in `folder`: one process for each rank (cpu), all ranks as fibers of one process in as many
    random orders as `repeats` says (fibers), or on GPUs (cuda). With `started`, which is for the CPU, this process is
    one rank, and all others make the same call.

    Raises InputError for another folder or another number of ranks than there can be, MissingBackendError without a
    compiler or GPU, CheckFailed for a schedule that hangs, or a rank that ended.
    """
    decisions, lowered = schedule_in(folder)
    ranks = decisions.ranks * decisions.groups
    if started is not None:
        _require_alike(started, ranks, lowered.digest, str(folder))
    most = {"fibers": MOST_FIBERS, "cpu": MOST_PROCESSES, "cuda": MOST_PROCESSES}[backend]
    if ranks > most and started is None:
        raise InputError(f"found {ranks} ranks, expected at most {most} on one machine", where=str(folder))
    if started is not None and started.rank:
        started.gather(None)  # rank 0 compiles; the others find it, unless they are on another kind of machine
    compiled = build(lowered, TARGETS[backend], counts=backend != "cuda")
    if started is not None and not started.rank:
        started.gather(None)
    counted = counts(lowered.program)
    rows = []
    for kind in KINDS:
        runs = Runs(repeats=repeats, timeout=timeout or TIMEOUT_SECONDS)
        outcome = compare(compiled, lowered, runs, kind=kind, started=started)
        each = outcome.report.counted
        rows.append(
            Compared(
                data=kind,
                runs=repeats,
                bits=outcome.bits,
                problems=outcome.problems,
                undecided=outcome.undecided,
                seconds=median(outcome.report.seconds),
                planned_seconds=decisions.own_ns / 1e9,
                sent=max((one.sent for one in each), default=0) // repeats,
                sent_on=max((one.sent_on for one in each), default=0) // repeats,
                traffic=max((one.loaded + one.stored for one in each), default=0) // repeats,
                planned_sent=float(counted.volume.value(lowered.bindings)),
                planned_sent_on=float(counted.between.value(lowered.bindings)),
                planned_traffic=float(counted.traffic.value(lowered.bindings)),
            )
        )
    return rows


def _require_alike(started: StartedRank, ranks: int, digest: str, where: str) -> None:
    """Raises InputError for another number of processes than `ranks`, or ranks with folders of different plans."""
    if started.world != ranks:
        message = f"found {started.world} processes, expected {ranks}: the plan says how many ranks there are"
        raise InputError(message, where="WORLD_SIZE")
    digests = started.gather(digest)
    other = [str(rank) for rank, each in enumerate(digests) if each != digests[0]]
    if other:
        raise InputError(f"rank {', '.join(other)} found other kernels than rank 0, expected the same", where=where)


def schedule_in(folder: Path | str) -> tuple[FusionDecisions, Lowered]:
    """The plan in a folder and its kernels, which must be those of the folder. Raises InputError for a folder that
    `treadle generate` did not make of a fusion plan, or that was made otherwise."""
    manifest, texts = emit.read(folder)
    where = str(Path(folder) / PLAN_NAME)
    plan = as_pass(store.loads(texts[PLAN_NAME], where, Plan), FusionDecisions) if PLAN_NAME in texts else None
    if plan is None or manifest.target != "cuda":
        raise InputError("found no kernels of a fusion plan", where=str(folder))
    names = manifest.facts.get("collectives", ())
    carried = {name: store.loads(texts[name], str(Path(folder) / name), Plan) for name in names}
    lowered = lowered_of(plan.decisions, carried)
    if files_of(lowered)[MAIN] != texts[MAIN]:
        message = "found other kernels than this version of treadle makes of the plan; generate again"
        raise InputError(message, where=str(Path(folder) / MAIN))
    return plan.decisions, lowered
