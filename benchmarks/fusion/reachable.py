"""`python -m benchmarks.fusion.reachable`: every schedule that transformations lead to, executed rank by rank on host
fibers and compared with the reference interpreter, at sizes that the ranks do not divide."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from benchmarks.common import Row, Table, command, progress
from benchmarks.fusion.schedules import program
from codegen.fusion.lower import lower
from planner.errors import TreadleError
from planner.fusion.enumerate import enumerate_schedules
from planner.fusion.moves import Moves
from planner.fusion.overlaps import chains, choices
from planner.fusion.program import Bindings, Program
from planner.fusion.prune import pointwise_first
from treadle.runtime.fusion.build import build
from treadle.runtime.fusion.compare import compare
from treadle.runtime.fusion.runs import Runs

RANKS = (2, 3, 4, 5, 8)
ORDERS = 6
"""Of fibers, for each schedule; every one is a run in the same session."""
SENT = Moves(slice_intro=True, send_fuse=True)


@dataclass(frozen=True)
class Case:
    """A program, how its schedules are made, and its sizes; `groups` of ranks one after the other."""

    program: str
    moves: Moves
    extents: dict[str, int]
    groups: int = 1
    parts: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def bindings(self, ranks: int) -> Bindings:
        return Bindings(self.extents, ranks, self.groups, self.parts)


CASES = {
    "sgd": Case("sgd", Moves(one_sided_fuse=True), {"N": 37}),
    "attention": Case("attention", Moves(computation_fuse=True), {"B": 1, "S": 5, "H": 13}),
    "adam": Case("adam_f32", Moves(as_slice=True), {"N": 101}),
    "pipeline": Case("pipeline", SENT, {"B": 1, "S": 5, "H": 7}, groups=2),
    "adam f16": Case("adam", Moves(as_slice=True), {"N": 101}),
    "lamb": Case("lamb", Moves(as_slice=True), {"N": 70}, parts={"N": (37, 1, 32)}),
    "rmsnorm": Case("rmsnorm", Moves(as_slice=True, dims=(0,)), {"T": 11, "H": 12}),
    "moe": Case("moe", Moves(all_to_all_fuse=True), {"T": 120, "H": 6}),
    "matmul_rs": Case("matmul_rs", Moves(), {"T": 11, "H": 6, "F": 9}),
    "ag_matmul": Case("ag_matmul", Moves(), {"T": 11, "H": 6, "F": 9}),
}


@dataclass(frozen=True)
class Outcome:
    """Of one schedule: what is wrong with it, or why there are no kernels of it."""

    schedule: Program
    problems: tuple[str, ...] = ()
    refused: str = ""
    bits: bool = False
    compile_seconds: float = 0.0
    run_seconds: float = 0.0


def tables() -> Iterator[Table]:
    """Every reachable schedule of the example programs, executed by all ranks and compared bit by bit."""
    wrong: list[str] = []
    rows = []
    for name in CASES:
        for ranks in RANKS:
            progress(f"{name} on {ranks} ranks")
            outcomes = list(executed(name, ranks))
            wrong += [
                f"{name} on {ranks} ranks: {line}" for of in outcomes for line in (*of.problems, of.refused) if line
            ]
            rows.append(row(name, ranks, outcomes))
    yield Table(
        f"Schedules that transformations reach, {ORDERS} runs of each in random orders of all threads",
        rows,
        ("bits: integers, compared bit by bit; else floats within the tolerance of their type", *wrong[:40]),
    )


def row(name: str, ranks: int, outcomes: list[Outcome]) -> Row:
    run = [of for of in outcomes if not of.refused]
    return {
        "program": name,
        "ranks": ranks * CASES[name].groups,
        "schedules": sum(not of.schedule.overlaps for of in outcomes),
        "overlapped": sum(bool(of.schedule.overlaps) for of in outcomes),
        "executed": len(run),
        "right": sum(not of.problems for of in run),
        "bits": all(of.bits for of in run),
        "compile s": sum(of.compile_seconds for of in outcomes),
        "run s": sum(of.run_seconds for of in outcomes),
    }


def executed(name: str, ranks: int, overlapped: bool = True) -> Iterator[Outcome]:
    """Every schedule of a case on so many ranks of a group; several are compiled at the same time."""
    case = CASES[name]
    found = list(schedules(case, overlapped))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(lambda schedule: outcome(schedule, case.bindings(ranks)), found)


def schedules(case: Case, overlapped: bool = True) -> Iterator[Program]:
    """Each without overlaps and with every legal choice of them. Computations are fused first, unless moves do that."""
    given = program(case.program)
    start = given if case.moves.computation_fuse else pointwise_first(given)[0]
    for found in enumerate_schedules(start, case.moves).schedules:
        yield found.program
        if overlapped:
            for chosen, made in choices(found.program, chains(found.program).legal):
                if chosen:
                    yield made


def outcome(schedule: Program, bindings: Bindings, orders: int = ORDERS) -> Outcome:
    start = time.perf_counter()
    try:
        lowered = lower(schedule, bindings, channels=2, slot_bytes=64)
        compiled = build(lowered, quickly=True)
        built = time.perf_counter()
        compared = compare(compiled, lowered, Runs(orders, order=1))
    except TreadleError as error:
        return Outcome(schedule, refused=str(error), compile_seconds=time.perf_counter() - start)
    end = time.perf_counter()
    return Outcome(schedule, compared.problems, "", compared.bits, built - start, end - built)


if __name__ == "__main__":
    command(tables)()
