"""A plan as one text for agents and trainers of any make: who sends what to whom, when, and what that costs."""

from __future__ import annotations

from typing import Any

from treadle.codegen.interface import Made
from treadle.codegen.json_text import json_text
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions

FILE_NAME = "checkpoint.json"
PIECE_FIELDS = ("span", "copy", "offset", "bytes", "buffer")
OWN_FIELDS = ("message", "offset", "bytes")


def configuration(plan: Plan[CheckpointDecisions]) -> Made:
    """The text, and the facts of its manifest."""
    decisions = plan.decisions
    facts = {
        "planned_ns": decisions.time_ns,
        "machines": decisions.problem.machines,
        "copies": decisions.problem.copies,
        "pieces": len(decisions.pieces),
        "host_bytes": decisions.host_bytes,
    }
    return Made({FILE_NAME: json_text(config_of(decisions))}, facts)


def config_of(decisions: CheckpointDecisions) -> dict[str, Any]:
    """What the machines need to know. In turn r of an iteration machine i sends its pieces of copy r to `send_to[r-1]`,
    and takes those of `receive_from[r-1]` at the same time."""
    problem, holders = decisions.problem, decisions.holders
    turns = range(1, problem.copies)
    senders = [{held[turn]: owner for owner, held in enumerate(holders)} for turn in turns]
    hosted = [[owner for owner, held in enumerate(holders) if machine in held] for machine in range(problem.machines)]
    return {
        "job": problem.name,
        "placement": decisions.placement,
        "variant": decisions.variant,
        "every": decisions.every,
        "copies": problem.copies,
        "devices": problem.devices,
        "state_bytes": problem.state_bytes,
        "buffer_bytes": problem.piece_bytes,
        "buffers": problem.buffers,
        "host_bytes": decisions.host_bytes,
        "machines": [
            {
                "machine": machine,
                "domain": problem.domains[machine] if problem.domains else None,
                "holders": [*held],
                "hosts": hosted[machine],
                "send_to": [held[turn] for turn in turns],
                "receive_from": [sends[machine] for sends in senders],
            }
            for machine, held in enumerate(holders)
        ],
        "spans": [
            {"span": place, "after": each.after, "before": each.before} for place, each in enumerate(problem.spans)
        ],
        "piece_fields": [*PIECE_FIELDS],
        "pieces": [[getattr(each, name) for name in PIECE_FIELDS] for each in decisions.pieces],
        "messages": [each.name for each in problem.messages],
        "own_fields": [*OWN_FIELDS],
        "own": [[getattr(each, name) for name in OWN_FIELDS] for each in decisions.own],
    }
