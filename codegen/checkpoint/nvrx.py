"""Target `nvrx`: the groups of ranks that hold each other's states, as a module for NVRx's local checkpoints.

NVRx, NVIDIA's Resiliency Extension, makes such groups only for worlds that its factors divide; these are made from the
plan, for any world. Its cliques know no order of holders and no idle spans: all that a plan says of time stays behind.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.codegen.checkpoint.peers import Cliques, cliques_of, require_carried
from treadle.codegen.interface import Made
from treadle.codegen.templates import template
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions

FILE_NAME = "replication.py"


def nvrx(plan: Plan[CheckpointDecisions], plan_file: str) -> Made:
    """Raises InputError for a placement that cliques cannot carry."""
    decisions, problem = plan.decisions, plan.decisions.problem
    found = cliques_of(decisions.holders)
    require_carried(decisions, found, plan_file)
    held = 2 * found.hosted * problem.devices * problem.state_bytes
    text = template("checkpoint/nvrx.py.j2").render(
        name=problem.name,
        machines=many(problem.machines, "machine"),
        devices=many(problem.devices, "device"),
        every="every iteration" if decisions.every == 1 else f"every {decisions.every} iterations",
        host=format_bytes(held),
        widened=[(", ".join(map(str, group)), many(len(group), "state"), problem.copies) for group in found.widened],
        tables=[f"RANKS = {problem.machines * problem.devices}", *_table(found, problem.devices)],
    )
    facts = {
        "ranks": problem.machines * problem.devices,
        "every": decisions.every,
        "host_bytes": held,
        "widened": [list(group) for group in found.widened],
    }
    return Made({FILE_NAME: text}, facts)


def _table(found: Cliques, devices: int) -> Iterator[str]:
    """Lines of Python: device g of a machine is in one group with the devices g of the others."""
    yield "CLIQUES = ["
    for group in found.groups:
        for device in range(devices):
            yield f"    {[machine * devices + device for machine in group]},"
    yield "]"
