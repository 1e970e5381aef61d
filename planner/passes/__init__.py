"""The passes: one room each, and this is their list."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from treadle.planner.documents.nearest import with_article
from treadle.planner.errors import InputError

if TYPE_CHECKING:
    from treadle.planner.documents.plan import Plan
    from treadle.planner.documents.scalars import Decisions
    from treadle.planner.passes.interface import AnyPass, D, Pass

ROOMS = {
    "memory": "What to keep and what to recompute under a budget in bytes.",
    "swap": "What to copy to the host and back: order, memory pool and copies together.",
    "collective": "How the chunks of an allreduce or another collective travel.",
    "fusion": "Which computation and collectives share a kernel, and what overlaps.",
    "compression": "Which gradients are compressed, where and in which groups, and when none is.",
    "sparse": "How each sparse gradient is exchanged: in which parts, along what, in what format, or dense.",
    "ranks": "Which host gets which ranks, so that a collective that is not ours takes its cheap links.",
    "aggregation": "Which hosts are near each other, and who adds up which chunk within and between their groups.",
    "server": "Which core of a parameter server handles which chunk, and how many workers its parts carry.",
    "checkpoint": "Which machines keep whose state in memory, when idle links carry it, and how often.",
    "tiling": "Along which axes each array of a program, or tensor of a model, is cut over a mesh of workers.",
    "index": "Which leaves a learned index of 64-bit keys has, and how large they get, for a trace of operations.",
}
"""What each pass decides, by its name. Nothing is imported before a pass is asked for, so that `--help` stays fast."""


@cache
def room(name: str) -> AnyPass:
    """The pass of one name. Raises KeyError for another one."""
    if name not in ROOMS:
        raise KeyError(name)
    return cast("AnyPass", import_module(f"{__name__}.{name}.room").PASS)


def rooms() -> tuple[AnyPass, ...]:
    """All passes, in the order of the list."""
    return tuple(map(room, ROOMS))


def pass_of(plan: Plan[D]) -> Pass[D]:
    """The pass that made `plan`."""
    return room(name_of(plan.decisions))


def name_of(decisions: Decisions) -> str:
    """The name of the pass that decided this."""
    return str(decisions.__struct_config__.tag)


def as_pass(plan: Plan[Any], decisions: type[D]) -> Plan[D] | None:
    """`plan` where it is one with such decisions, else None."""
    return plan if isinstance(plan.decisions, decisions) else None


def require_pass(plan: Plan[Any], decisions: type[D], where: str) -> Plan[D]:
    """`plan`, which must be one with such decisions. Raises InputError, which calls it `where`, for another one."""
    found = as_pass(plan, decisions)
    if found is None:
        given, wanted = name_of(plan.decisions), decisions.__struct_config__.tag
        raise InputError(f"found {with_article(given)} plan, expected {with_article(str(wanted))} plan", where=where)
    return found
