"""Passes as commands, sections of the report, runs: one room each, named in `treadle.planner.passes`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

from treadle.planner.passes import name_of

if TYPE_CHECKING:
    from treadle.passes.interface import AnyRoom, D, Room
    from treadle.planner.documents.plan import Plan


@cache
def room(name: str) -> AnyRoom:
    """What the commands do with plans of the pass `name`."""
    return cast("AnyRoom", import_module(f"{__name__}.{name}.room").ROOM)


def room_of(plan: Plan[D]) -> Room[D]:
    """What the commands do with `plan`."""
    return room(name_of(plan.decisions))
