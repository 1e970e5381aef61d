"""What a fusion plan becomes: a folder for one of its targets."""

from __future__ import annotations

from typing import Any

from codegen.fusion import tp_overlap
from planner.errors import InputError
from planner.fusion.decisions import FusionDecisions


def generate(decisions: FusionDecisions, plan_file: str, target: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Texts by relative path, and the facts of their manifest. Raises InputError, which names `plan_file`, for what the
    target cannot carry."""
    facts: dict[str, Any] = {"planned_ns": decisions.time_ns, "ranks": decisions.ranks, "groups": decisions.groups}
    try:
        return tp_overlap.generate(decisions), facts
    except InputError as error:
        raise InputError(f"{target}: {error}", where=plan_file) from error
