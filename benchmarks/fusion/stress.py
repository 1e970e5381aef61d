"""Overlapped schedules under random timing, compared with the reference interpreter.

On fibers all threads run in random orders; as processes they run at once, with random pauses. Fibers test orders, not
the memory model of a machine: only processes can show a missing fence.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common import Row, Table, progress
from benchmarks.fusion.schedules import pipeline, program, tail
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.planner.errors import CheckFailed
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.stages import stages
from treadle.planner.passes.fusion.transforms.overlapping import overlap
from treadle.runtime.fusion.build import build
from treadle.runtime.fusion.compare import compare
from treadle.runtime.fusion.runs import Runs
from treadle.runtime.native_build import Target

ORDERS, PAUSED = 1000, 60
"""Total runs on fibers and on processes."""
TAIL = {"B": 2, "S": 11, "H": 27}
ROWS = {"T": 29, "H": 27, "F": 13}


@dataclass(frozen=True)
class Case:
    """A schedule and its sizes, which ranks, tiles and messages do not divide."""

    schedule: Program
    bindings: Bindings
    options: dict[str, Any] = field(default_factory=dict)

    def lowered(self) -> Lowered:
        return lower(self.schedule, self.bindings, **{"tile": (8, 16), "slot_bytes": 256, **self.options})


def cases() -> dict[str, Case]:
    attention, layers = tail("attention"), tail("mlp")
    fused, handed = "ol(MM,fuse(RS-C-AG))", "ol(RS,fuse(C-P2P),AG)"
    both = {name: _whole(program(name)) for name in ("matmul_rs", "ag_matmul")}
    return {
        f"attention, {fused}": Case(attention[fused], Bindings(TAIL, 3)),
        f"attention, {fused}, 2 channels": Case(attention[fused], Bindings(TAIL, 4), {"channels": 2}),
        f"attention, {fused}, all pairs": Case(attention[fused], Bindings(TAIL, 4), {"algorithm": "all-pairs"}),
        f"attention, {fused}, LL": Case(attention[fused], Bindings(TAIL, 3), {"protocol": "LL"}),
        "attention, ol(MM,AR), tree": Case(attention["ol(MM,AR)"], Bindings(TAIL, 5), {"algorithm": "double-tree"}),
        f"mlp, {fused}": Case(layers[fused], Bindings(TAIL, 2), {"tile": (16, 8)}),
        "matmul_rs, ol(MM,RS)": Case(both["matmul_rs"], Bindings(ROWS, 3)),
        "ag_matmul, ol(AG,MM)": Case(both["ag_matmul"], Bindings(ROWS, 4)),
        f"pipeline, {handed}": Case(pipeline()[handed], Bindings(TAIL, 3, 3)),
    }


def tables() -> Iterator[Table]:
    """Races and deadlocks of overlapped kernels: 1,000 random orders on fibers, 60 runs with random pauses."""
    found = cases()
    for target, total, how in (
        ("fibers", ORDERS, "random orders of all threads on fibers"),
        ("process", PAUSED, "random pauses of threadblocks that run at once, a process for each rank"),
    ):
        rows = [_row(name, case, target, -(-total // len(found))) for name, case in found.items()]  # type: ignore[arg-type]
        runs = sum(row["runs"] for row in rows)
        bad = sum(row["wrong or stuck"] for row in rows)
        yield Table(f"Overlapped schedules: {how}", rows, (f"{runs} runs, {bad} schedules wrong or stuck.",))


def _whole(given: Program) -> Program:
    """All stages of a program, overlapped."""
    return overlap(given, [stage.name for stage in stages(given)]).program


def _row(name: str, case: Case, target: Target, runs: int) -> Row:
    progress(f"fusion.stress: {name} on {target}")
    lowered = case.lowered()
    compiled = build(lowered, target)
    began = time.perf_counter()
    try:
        problems = list(compare(compiled, lowered, Runs(runs, order=1)).problems)
    except CheckFailed as error:
        problems = [str(error), *error.findings]
    return {
        "schedule": name,
        "ranks": case.bindings.ranks * case.bindings.groups,
        "kernels at once": max(map(len, lowered.launches)),
        "runs": runs,
        "wrong or stuck": len(problems),
        "first": problems[0] if problems else "",
        "s": time.perf_counter() - began,
    }
