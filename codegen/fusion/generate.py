"""What a fusion plan becomes: a folder for one of its targets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from codegen.fusion import nccl, nccl_device, torch_wrapper, tp_overlap
from codegen.fusion.algorithms import Algorithm, chosen, named, planned
from codegen.fusion.lower import Lowered, headers
from codegen.fusion.lower import lower as lower_schedule
from codegen.fusion.numbers import FILE_NAME as TABLES
from codegen.fusion.numbers import apart
from codegen.lower import lower as lower_collective
from planner import documents
from planner.collective.algorithm import CollectiveDecisions
from planner.collective.check import check
from planner.errors import InputError
from planner.fusion.decisions import FusionDecisions
from planner.fusion.parsing import parse
from planner.fusion.program import Bindings, Program
from planner.plan import Plan

MAIN = "schedule.cu"
NAMES = {"hierarchical": "two-level", "tree": "double-tree"}
"""Algorithms of the price model by the names of the planner's templates, where they differ."""


def generate(
    decisions: FusionDecisions, plan_file: str, target: str, collectives: Mapping[str, Plan]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Texts by relative path, and the facts of their manifest.

    collectives: plans by file name whose algorithms carry the schedule's collectives, instead of those that it was
    priced with; they go along. Raises InputError, which names `plan_file`, for what the target cannot carry.
    """
    facts: dict[str, Any] = {"planned_ns": decisions.time_ns, "ranks": decisions.ranks, "groups": decisions.groups}
    schedule, bindings = scheduled(decisions)
    try:
        if target == "tp-overlap":
            return tp_overlap.generate(decisions), facts
        if target == "torch":
            return {f"{identifier(schedule.name)}.py": torch_wrapper.generate(schedule)}, facts
        if target == "nccl":
            stock = nccl.generate(schedule, bindings)
            return stock.texts, {**facts, **({"without": list(stock.notes)} if stock.notes else {})}
        if target == "nccl-device":
            return _device(schedule, bindings), facts
        lowered, changed = lowered_of(decisions, [collective_of(plan, name) for name, plan in collectives.items()])
    except InputError as error:
        raise InputError(f"{target}: {error}", where=plan_file) from error
    fallbacks = {" -> ".join(each.members): each.why for each in lowered.fallbacks}
    facts |= {"digest": lowered.digest, **({"in_turn": fallbacks} if fallbacks else {}), **changed}
    if collectives:
        facts["collectives"] = sorted(collectives)
    return {**files_of(lowered), **{name: documents.dumps(plan) for name, plan in collectives.items()}}, facts


def files_of(lowered: Lowered) -> dict[str, str]:
    """The file of a schedule, its tables and all headers."""
    text, tables = apart(lowered.text)
    return {**headers(), MAIN: text, **({TABLES: tables} if tables else {})}


def collective_of(plan: Plan, name: str) -> CollectiveDecisions:
    """Raises InputError, which names the file, for a plan of another pass or one that its checker rejects."""
    if not isinstance(plan.decisions, CollectiveDecisions):
        raise InputError("found the plan of another pass, expected a collective's", where=name)
    if findings := check(plan.decisions):
        raise InputError(f"its check failed: {findings[0]}", where=name)
    return plan.decisions


def scheduled(decisions: FusionDecisions) -> tuple[Program, Bindings]:
    """The schedule of a plan and what it is for."""
    bindings = Bindings(decisions.extents, decisions.ranks, decisions.groups, decisions.parts)
    return parse(decisions.schedule, "$.decisions.schedule"), bindings


def identifier(name: str) -> str:
    """A module name in Python."""
    return re.sub(r"\W", "_", name).lower()


def _device(schedule: Program, bindings: Bindings) -> dict[str, str]:
    """A file for every fused AllReduce, with the headers. Raises InputError where there is none."""
    made = nccl_device.generate(schedule, bindings)
    if not made:
        raise InputError("found no fused AllReduce, which is all that this target carries")
    return {**headers(), **{f"{each.name}.cu": each.text for each in made}}


def lowered_of(
    decisions: FusionDecisions, collectives: Sequence[CollectiveDecisions] = ()
) -> tuple[Lowered, dict[str, Any]]:
    """The kernels of the plan's schedule, and where they are run otherwise than it was priced.

    Raises InputError for stages without a kernel, and collective plans of other ranks.
    """
    schedule, bindings = scheduled(decisions)
    priced = next((stage for stage in decisions.stages if stage.algorithm is not None), None)
    name = "ring" if priced is None or priced.algorithm is None else priced.algorithm
    per_node = -(-decisions.ranks * decisions.groups // decisions.nodes)
    protocol = "Simple" if priced is None or priced.protocol is None else priced.protocol
    channels = (priced.channels if priced is not None else None) or 1
    given: dict[str, Algorithm] = {each.collective: planned(lower_collective(each)) for each in collectives}

    def made(algorithm: str) -> Lowered:
        usual = named(NAMES.get(algorithm, algorithm), min(per_node, decisions.ranks))
        using = chosen(given, usual) if given else usual
        return lower_schedule(schedule, bindings, protocol=protocol, channels=channels, algorithm=using)

    try:
        return made(name), {}
    except InputError as error:
        if name == "ring" or given:
            raise
        return made("ring"), {"algorithm": f"ring instead of {name}: {error}"}
