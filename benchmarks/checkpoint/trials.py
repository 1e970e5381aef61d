"""Faults at random moments of a training between hosts of a lab: does it go on from memory, with the same losses?"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.checkpoint import phases
from benchmarks.checkpoint.cluster import PERIOD_S, TIMEOUT_S, Cluster, NotRecovered, lab_of
from benchmarks.checkpoint.curves import Curve, difference
from benchmarks.checkpoint.faults import FAULTS, LOSSES, Fault
from benchmarks.checkpoint.moments import Moments
from benchmarks.checkpoint.training import RankWork, forkable
from benchmarks.common import Row, Table, machine, progress
from treadle.lab.state import Lab
from treadle.planner.documents import store
from treadle.planner.passes.checkpoint.planning import plan_checkpoint
from treadle.planner.passes.checkpoint.problem import VERSION, CheckpointProblem, IdleSpan, Persistent, Recovery

MACHINES, SPARE = 4, 2
RATE = 200e6
"""Bits per second of each host's link."""
STEPS, FIRST, LAST = 40, 12, 30
"""Steps of a training, and those among which a fault comes."""
COMPUTE_S, ITERATION_NS = 0.05, 120_000_000
STATE_BYTES = 2 << 20
SAVE_NS = 1_000_000_000
MOMENTS = 10
PHASES = ("seen", "replaced", "fetched", "whole", "started", "states", "step")
"""The root has published a recovery; machines that were lost have agents with memory; states came from other machines;
all machines are whole; ranks are started; they have their states; the first step is made."""
TRANSFER_S = 0.04
"""A state is under way so long after an update, at least."""
HOW = (
    f"{MACHINES} machines and {SPARE} spare hosts, two copies of each state, etcd on a host of its own; each trial at "
    "a seeded random moment; equal: every loss of every rank, repeated steps too, has the bits of a run without faults"
)


class Trial(NamedTuple):
    source: str
    """Where the states came from when it went on."""
    lost_steps: int
    """Steps that were made again."""
    phases: tuple[float | None, ...]
    """Seconds from the fault until each of `PHASES`; None where that did not happen."""
    wrong: str
    """What differs, or why it did not go on; nothing where all is as expected."""


def tables() -> Iterator[Table]:
    """Eleven faults at 10 random moments each of a training between hosts of a lab; about 20 minutes."""
    yield from trials(FAULTS, range(MOMENTS))


def trials(faults: Sequence[Fault], moments: Sequence[int]) -> Iterator[Table]:
    """Of each fault what it led to, then how long its phases took where hosts were lost."""
    forkable()
    rows: list[Row] = []
    lost: list[phases.TrialTimes] = []
    with TemporaryDirectory() as name, lab_of(MACHINES + SPARE + 1, RATE, Path(name)) as lab:
        folder = Path(name)
        expected = uninterrupted(lab, folder / "whole")
        plan = plan_file(folder)
        for fault in faults:
            found = []
            for moment in moments:
                found.append(trial(lab, plan, fault, moment, folder / f"{FAULTS.index(fault)}.{moment}", expected))
                progress(f"{fault.name}, moment {moment}: {found[-1]}")
            rows.append(row(fault, found))
            if fault.strike in LOSSES:
                lost += [dict(zip(PHASES, each.phases, strict=True)) for each in found if each.source == "memory"]
    yield Table("a training with faults: what it goes on from", rows, (HOW, machine()))
    if lost:
        yield phases.table(lost, problem(), ITERATION_NS / 1e9)


def row(fault: Fault, found: Sequence[Trial]) -> Row:
    """One fault over its moments."""
    sources = {name: sum(each.source == name for each in found) for name in ("memory", "storage", "begin")}
    wrong = [each.wrong for each in found if each.wrong]
    recovered = [each for each in found if not each.wrong]
    return {
        "fault": fault.name,
        "moments": len(found),
        "equal": len(found) - len(wrong),
        "from": ", ".join(f"{name} {number}" for name, number in sources.items() if number),
        "steps repeated, most": max((each.lost_steps for each in recovered), default=None),
        **{f"s {name}": middle([each.phases[place] for each in recovered]) for place, name in enumerate(PHASES)},
        "slowest": max((each.phases[-1] or 0.0 for each in recovered), default=None),
        "wrong": wrong[0] if wrong else "",
    }


def middle(times: Sequence[float | None]) -> float | None:
    """The median where most have a time."""
    known = [each for each in times if each is not None]
    return median(known) if 2 * len(known) > len(times) else None


def uninterrupted(lab: Lab, folder: Path) -> list[Curve]:
    """The curves of the training without checkpoints and faults."""
    folder.mkdir()
    with Cluster(lab, MACHINES, work(folder), folder) as cluster:
        cluster.start_ranks()
        cluster.finish()
        return cluster.curves()


def trial(lab: Lab, plan: Path, fault: Fault, moment: int, folder: Path, expected: Sequence[Curve]) -> Trial:
    """One training with one fault."""
    folder.mkdir()
    dice = Random(f"{fault.name}, {moment}")
    when = dice.randrange(FIRST, LAST)
    with Cluster(lab, MACHINES, work(folder, plan), folder) as cluster, Moments(folder) as moments:
        try:
            cluster.start_store()
            cluster.start_agents()
            fault.prepare(cluster)
            cluster.start_ranks()
            cluster.wait_for_step(0)
            cluster.find_root()
            cluster.wait_for_step(when)
            time.sleep(dice.uniform(0, TRANSFER_S if fault.in_transfer else ITERATION_NS / 1e9))
            struck = time.monotonic_ns()
            fault.strike(cluster, dice)
            cluster.end_ranks()
            reached = cluster.last_step()
            cluster.start_ranks()
            started = time.monotonic_ns()
            cluster.finish()
        except NotRecovered as error:
            return Trial("", 0, (), f"{error}; {last_words(folder)}")
        curves = cluster.curves()
    start = curves[0].starts[-1]
    again = next(time_ns for step, _, time_ns in curves[0].losses if time_ns > start.time_ns)
    seen, *later = (moments.times(name, struck) for name in PHASES[:4])
    said = (min(seen, default=None), *(max(each, default=None) for each in later))
    times = tuple(each and (each - struck) / 1e9 for each in (*said, started, start.time_ns, again))
    wrong = difference(expected, curves)
    if start.source != fault.expected:
        wrong = wrong or f"went on from {start.source}, expected {fault.expected}"
    return Trial(start.source, reached + 1 - start.step, times, wrong)


def work(folder: Path, plan: Path | None = None) -> RankWork:
    saved = None if plan is None else folder / "saved"
    return RankWork(0, 1, "", "", STEPS, folder, compute_s=COMPUTE_S, plan=plan, persistent=saved)


def problem() -> CheckpointProblem:
    """Links are idle while a device computes."""
    update = ITERATION_NS - 10_000_000
    return CheckpointProblem(
        version=VERSION,
        name="trials",
        machines=MACHINES,
        copies=2,
        devices=1,
        state_bytes=STATE_BYTES,
        iteration_ns=ITERATION_NS,
        spans=(IdleSpan(after="begin", before="update", length_ns=update),),
        alpha_ns=100_000,
        link_rate=round(RATE / 8),
        buffer_bytes=256 << 10,
        persistent=Persistent(rate=10**9, interval_ns=SAVE_NS),
        recovery=Recovery(detect_ns=round((TIMEOUT_S + PERIOD_S) * 1e9)),
    )


def plan_file(folder: Path) -> Path:
    plan = folder / "trials.plan.json"
    store.save(plan_checkpoint(problem()), plan)
    return plan


def last_words(folder: Path) -> str:
    """The last line of the logs that say something of an error."""
    lines = [
        f"{log.stem}: {line}"
        for log in sorted(folder.glob("*.log"))
        for line in log.read_text().splitlines()
        if "rror" in line
    ]
    return lines[-1] if lines else "no log has an error"


if __name__ == "__main__":
    chosen = [FAULTS[int(number)] for number in sys.argv[2].split(",")] if len(sys.argv) > 2 else FAULTS
    from benchmarks.common import show

    show(trials(chosen, range(int((*sys.argv, str(MOMENTS))[1]))), as_json=False)
