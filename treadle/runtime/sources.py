"""A plan, and the trace it was made from, each given as a document or as its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treadle.codegen import emit
from treadle.codegen.targets import PLAN_NAME
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.sources import input_beside
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes import pass_of, require_pass
from treadle.planner.passes.interface import D


def given_plan(plan: Plan[Any] | Path | str, caller: str, decisions: type[D]) -> Plan[D]:
    """The plan, or that of its file. `caller` is what messages call a plan that is no file. Raises InputError for a
    plan without such `decisions`."""
    given, where = (store.load(plan, Plan), str(plan)) if isinstance(plan, str | Path) else (plan, caller)
    if not isinstance(given, Plan):
        raise InputError(f"found a plan of type {type(plan).__name__}, expected a Plan or its file", where=where)
    return require_pass(given, decisions, where)


def sound_decisions(plan: Plan[Any] | Path | str, caller: str, decisions: type[D]) -> D:
    """Those of a plan, of its file, or of a folder that was generated from it. Raises as `given_plan`, InputError for a
    folder that was changed, CheckFailed for a plan that fails its check."""
    where = str(plan) if isinstance(plan, str | Path) else caller
    if isinstance(plan, str | Path) and Path(plan).is_dir():
        emit.read(Path(plan))
        plan = store.load(Path(plan) / PLAN_NAME, Plan)
    found = given_plan(plan, where, decisions)
    if findings := pass_of(found).findings(found.decisions):
        raise CheckFailed(f"{where}: the plan fails its check: {findings[0]}", tuple(findings))
    return found.decisions


def plan_and_trace(
    plan: Plan | Path | str, trace: Trace | Path | str | None, caller: str, decisions: type[D]
) -> tuple[Plan[D], Trace]:
    """The two documents. A trace that is not given is looked for next to the plan's file.

    `caller` is what messages call a plan that is no file. Raises InputError for a plan without such `decisions`, and
    where the trace is missing or not that of the plan; CheckFailed for a plan that fails its check.
    """
    place = Path(plan).parent if isinstance(plan, str | Path) else None
    where = str(plan) if place is not None else caller
    document = given_plan(plan, caller, decisions)
    if findings := pass_of(document).check(document.decisions):
        raise CheckFailed(f"{where}: the plan fails its check: {findings[0]}", tuple(findings))
    reference = document.inputs.get("trace")
    if trace is None:
        if place is None or reference is None:
            raise InputError("found no trace, expected trace=... with a plan that is not a file", where=where)
        trace = input_beside(str(plan), reference)
        if not Path(trace).is_file():
            text = f"found no trace {reference.file!r} next to the plan, expected it there, or its file as trace=..."
            raise InputError(text, where=where)
    known = store.load(trace, Trace) if isinstance(trace, str | Path) else trace
    if not isinstance(known, Trace):
        raise InputError(f"found a trace of type {type(trace).__name__}, expected a Trace or its file", where=where)
    if reference is not None and store.digest(known) != reference.digest:
        text = f"found a trace other than {reference.file!r} that the plan was made from; plan again"
        raise InputError(text, where=str(trace) if isinstance(trace, str | Path) else where)
    return document, known
