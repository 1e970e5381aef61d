"""Target `lm-resiliency`: the configuration of LM-Resiliency's checkpoints in memory, as a module.

LM-Resiliency holds two copies, in pairs of ranks at one distance. It sends pieces one after another in the background,
not in the idle spans of the plan.
"""

from __future__ import annotations

from typing import Any

from treadle.codegen.checkpoint.peers import jump_of
from treadle.codegen.interface import Made
from treadle.codegen.templates import template
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions

FILE_NAME = "checkpointing.py"


def lm_resiliency(plan: Plan[CheckpointDecisions], plan_file: str) -> Made:
    """Raises InputError for a placement that is not in pairs at one distance."""
    decisions, problem = plan.decisions, plan.decisions.problem
    jump = jump_of(decisions.holders)
    if jump is None:
        raise InputError(
            f"found {many(problem.copies, 'holder')} of each state on {many(problem.machines, 'machine')}, placed as "
            f"{decisions.placement}, expected pairs of machines at one distance for lm-resiliency",
            where=plan_file,
        )
    values = settings(decisions, jump)
    text = template("checkpoint/lm_resiliency.py.j2").render(
        name=problem.name,
        ranks=problem.machines * problem.devices,
        tables=["VALUES = {", *(f'    "{name}": {value},' for name, value in values.items()), "}"],
    )
    return Made({FILE_NAME: text}, {"ranks": problem.machines * problem.devices, **values})


def settings(decisions: CheckpointDecisions, jump: int) -> dict[str, Any]:
    """The fields of InMemoryCkptConfig that a plan decides; `jump` counts machines. A shard that fails its checksum
    counts as absent, since plans rely on that."""
    problem = decisions.problem
    flush = 0
    if problem.persistent is not None:
        flush = max(problem.persistent.interval_ns // decisions.time_ns // decisions.every, 1) * decisions.every
    return {
        "interval": decisions.every,
        "replication_jump": jump * problem.devices,
        "replication_chunk_size": problem.piece_bytes,
        "disk_flush_interval": flush,
        "verify_integrity": True,
        "skip_replication_if_hsdp": False,
        "pin_memory": problem.copy_rate is not None,
    }
