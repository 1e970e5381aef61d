"""Target `cuda-checkpoint`: the transfers of a plan over NCCL, as a library in C++ for the ranks of a training."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.codegen.interface import Made
from treadle.codegen.templates import template
from treadle.planner import resources
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions

MAIN = "treadle_checkpoint.cu"
TEXTS = (MAIN, "treadle_transfers.h", "treadle_nccl.h")
TABLES = "checkpoint_plan.h"


def cuda_checkpoint(plan: Plan[CheckpointDecisions], plan_file: str) -> Made:
    """Raises InputError for a plan that these transfers do not run."""
    texts = texts_of(plan.decisions, plan_file)
    problem = plan.decisions.problem
    facts = {
        "ranks": problem.machines * problem.devices,
        "pieces": len(plan.decisions.pieces),
        "checkpoint_ns": plan.decisions.checkpoint_ns,
    }
    return Made(texts, facts)


def texts_of(decisions: CheckpointDecisions, where: str) -> dict[str, str]:
    """The texts of the library by file name; nvcc compiles `MAIN`."""
    for found, expected in _refused(decisions):
        raise InputError(f"found {found}, expected {expected} for cuda-checkpoint", where=where)
    problem, pieces = decisions.problem, decisions.pieces
    tables = template("checkpoint/plan.h.j2").render(
        name=problem.name,
        machines=problem.machines,
        devices=problem.devices,
        copies=problem.copies,
        state_bytes=problem.state_bytes,
        spans=len(problem.spans),
        messages=len(problem.messages),
        buffers=1 + max((piece.buffer for piece in pieces), default=0),
        buffer_bytes=max((piece.bytes for piece in pieces), default=1),
        sends=decisions.holders,
        receives=[*zip(*map(_inverse, zip(*decisions.holders, strict=True)), strict=True)],
        pieces=pieces,
        own=decisions.own,
    )
    folder = resources.folder("templates") / "checkpoint"
    return {TABLES: tables, **{name: (folder / name).read_text(encoding="utf-8") for name in TEXTS}}


def _inverse(round_: tuple[int, ...]) -> list[int]:
    """Whose state each machine receives in a round, in which machine i sends to the i-th entry."""
    return [round_.index(machine) for machine in range(len(round_))]


def _refused(decisions: CheckpointDecisions) -> Iterator[tuple[str, str]]:
    for number, round_ in enumerate(zip(*decisions.holders, strict=True)):
        if sorted(round_) != list(range(decisions.problem.machines)):
            yield f"round {number} in which a machine receives several states", "one for each machine"
    spans = [piece.span for piece in decisions.pieces]
    if spans != sorted(spans):
        yield "pieces that go back to an earlier span", "pieces in the order of their spans"
