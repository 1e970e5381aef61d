"""Every reachable schedule, executed and compared with the reference interpreter, at sizes that ranks do not divide.

All run on host fibers, rank by rank; those without overlaps also run as processes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from benchmarks.common import Row, Table, progress
from benchmarks.fusion.schedules import overlap_choices, program
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.planner.errors import TreadleError
from treadle.planner.passes.fusion.candidates import AllowedTransforms
from treadle.planner.passes.fusion.enumerate import enumerate_schedules
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.prune import pointwise_first
from treadle.runtime.fusion.build import build
from treadle.runtime.fusion.compare import compare
from treadle.runtime.fusion.runs import Runs
from treadle.runtime.native_build import Target

RANKS = (2, 3, 4, 5, 8)
PROCESSES = (2, 3)
"""Ranks of a group when each of them is a process."""
ORDERS, REPEATS = 6, 2
"""Runs of each schedule in one session: on fibers in different random orders, and on processes."""
SENT = AllowedTransforms(slice_intro=True, send_fuse=True)


@dataclass(frozen=True)
class Case:
    """A program, the transformations of its schedules, and its sizes; `groups` of ranks one after the other."""

    program: str
    allowed: AllowedTransforms
    extents: dict[str, int]
    groups: int = 1
    parts: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def bindings(self, ranks: int) -> Bindings:
        return Bindings(self.extents, ranks, self.groups, self.parts)


FIXTURES = {
    "sgd": Case("sgd", AllowedTransforms(one_sided_fuse=True), {"N": 37}),
    "attention": Case("attention", AllowedTransforms(computation_fuse=True), {"B": 1, "S": 5, "H": 13}),
    "adam": Case("adam_f32", AllowedTransforms(as_slice=True), {"N": 101}),
    "pipeline": Case("pipeline", SENT, {"B": 1, "S": 5, "H": 7}, groups=2),
}
"""Programs whose schedules are counted by hand, with the transformations of that count."""
OTHERS = {
    "adam f16": Case("adam", AllowedTransforms(as_slice=True), {"N": 101}),
    "lamb": Case("lamb", AllowedTransforms(as_slice=True), {"N": 70}, parts={"N": (37, 1, 32)}),
    "rmsnorm": Case("rmsnorm", AllowedTransforms(as_slice=True, dims=(0,)), {"T": 11, "H": 12}),
    "moe": Case("moe", AllowedTransforms(all_to_all_fuse=True), {"T": 120, "H": 6}),
    "matmul_rs": Case("matmul_rs", AllowedTransforms(), {"T": 11, "H": 6, "F": 9}),
    "ag_matmul": Case("ag_matmul", AllowedTransforms(), {"T": 11, "H": 6, "F": 9}),
}
CASES = {**FIXTURES, **OTHERS}


@dataclass(frozen=True)
class Job:
    """A schedule of a case, with kernels of its own."""

    name: str
    schedule: Program
    ranks: int
    target: Target = "fibers"


@dataclass(frozen=True)
class Outcome:
    """Result of one schedule: its errors, or why it has no kernels."""

    schedule: Program
    problems: tuple[str, ...] = ()
    refused: str = ""
    bits: bool = False
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    target: Target = "fibers"

    @property
    def equal(self) -> bool:
        """Whether all values are equal to the last bit."""
        return self.bits and not self.problems and not self.refused


def tables() -> Iterator[Table]:
    """Every reachable schedule of the example programs, executed by all ranks and compared bit by bit."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for title, names in (("the hand-worked programs", FIXTURES), ("other shipped programs", OTHERS)):
            yield _table(pool, title, tuple(names))


def _table(pool: ProcessPoolExecutor, title: str, names: Sequence[str]) -> Table:
    rows: list[Row] = []
    notes: list[str] = []
    why: Counter[str] = Counter()
    for name in names:
        found = list(schedules(CASES[name]))
        for ranks in RANKS:
            progress(f"{name} on {ranks} ranks")
            jobs, fallen = different(name, found, ranks)
            outcomes = list(pool.map(executed, jobs))
            why += fallen if ranks == RANKS[0] else Counter[str]()
            rows.append({**row(name, ranks, outcomes), "fell back": sum(fallen.values())})
            for of in outcomes:
                notes += [
                    f"{name} on {ranks} ranks, {of.target}: {line}" for line in (*of.problems, of.refused) if line
                ]
    executions = sum(one["executed"] + (one["as processes"] or 0) for one in rows)
    equal = sum(one["equal"] + (one["equal as processes"] or 0) for one in rows)
    return Table(
        f"Schedules of {title}: {ORDERS} runs of each in random orders of all threads, {REPEATS} as processes",
        rows,
        (
            f"{executions} executions of a schedule by all its ranks, {equal} equal to the last bit.",
            "fell back: legally overlapped schedules of which a part does not overlap; such a schedule is executed "
            "unless another one has the same kernels. equal: integers, bit by bit.",
            *(f"fell back, {count} schedules: {reason}" for reason, count in why.most_common()),
            *notes[:40],
        ),
    )


def different(name: str, found: Sequence[Program], ranks: int) -> tuple[list[Job], Counter[str]]:
    """Jobs for the schedules with different kernels, and the number of overlapped ones that fall back, by reason."""
    kept: dict[object, Job] = {}
    fallen: Counter[str] = Counter()
    for schedule in found:
        job = Job(name, schedule, ranks)
        try:
            lowered = _lowered(job)
        except TreadleError:
            kept[schedule] = job
            continue
        if lowered.fallbacks:
            fallen[lowered.fallbacks[0].why.partition(": ")[2]] += 1
        kept.setdefault((lowered.buffers, lowered.launches), job)
    jobs = list(kept.values())
    if ranks in PROCESSES:
        jobs += [Job(name, schedule, ranks, "process") for schedule in found if not schedule.overlaps]
    return jobs, fallen


def row(name: str, ranks: int, outcomes: list[Outcome]) -> Row:
    """Counts over the schedules of a case; `executed` counts those on fibers."""
    fibers = [of for of in outcomes if of.target == "fibers"]
    processes = [of for of in outcomes if of.target == "process"]
    return {
        "program": name,
        "ranks": ranks * CASES[name].groups,
        "schedules": sum(not of.schedule.overlaps for of in fibers),
        "overlapped": sum(bool(of.schedule.overlaps) for of in fibers),
        "executed": sum(not of.refused for of in fibers),
        "right": sum(not of.problems and not of.refused for of in fibers),
        "equal": sum(of.equal for of in fibers),
        "as processes": len(processes) or None,
        "equal as processes": sum(of.equal for of in processes) if processes else None,
        "compile s": sum(of.compile_seconds for of in outcomes),
        "run s": sum(of.run_seconds for of in outcomes),
    }


def schedules(case: Case, overlapped: bool = True) -> Iterator[Program]:
    """All schedules, without overlaps and with every legal choice of them; computations are fused first or later."""
    given = program(case.program)
    start = given if case.allowed.computation_fuse else pointwise_first(given)[0]
    for found in enumerate_schedules(start, case.allowed).schedules:
        yield found.program
        if overlapped:
            for chosen, made in overlap_choices(found.program):
                if chosen:
                    yield made


def executed(job: Job, orders: int = ORDERS) -> Outcome:
    start = time.perf_counter()
    try:
        lowered = _lowered(job)
        compiled = build(lowered, job.target, quickly=True)
        built = time.perf_counter()
        compared = compare(compiled, lowered, Runs(orders, order=1) if job.target == "fibers" else Runs(REPEATS))
    except TreadleError as error:
        seconds = time.perf_counter() - start
        return Outcome(job.schedule, refused=str(error), compile_seconds=seconds, target=job.target)
    end = time.perf_counter()
    return Outcome(job.schedule, compared.problems, "", compared.bits, built - start, end - built, job.target)


def _lowered(job: Job) -> Lowered:
    return lower(job.schedule, CASES[job.name].bindings(job.ranks), channels=2, slot_bytes=64)
