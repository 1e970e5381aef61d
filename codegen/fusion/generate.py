"""The artefacts of a fusion plan: a folder for one of its targets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.codegen.collective.lower import lower as lower_collective
from treadle.codegen.fusion import nccl, nccl_device, torch_wrapper, tp_overlap
from treadle.codegen.fusion.choices import Carried, choices_of
from treadle.codegen.fusion.lower import Lowered, lower, with_headers
from treadle.codegen.fusion.numbers import FILE_NAME as TABLES
from treadle.codegen.fusion.numbers import apart
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.fusion.decisions import FusionDecisions, StageChoice
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.stages import PRODUCTS, stages

MAIN = "schedule.cu"


def generate(
    decisions: FusionDecisions, plan_file: str, target: str, collectives: Mapping[str, Plan]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Texts by relative path, and the facts of their manifest; `planned_ns` among them where all of it runs as it was
    priced. Without a library products run on our own kernels, which have a price too.

    collectives: plans by file name whose algorithms carry the schedule's collectives, instead of those that it was
    priced with; they are copied with it. Raises InputError, which names `plan_file`, for what the target cannot carry.
    """
    facts: dict[str, Any] = {"ranks": decisions.ranks, "groups": decisions.groups}
    planned = {"planned_ns": decisions.own_ns}
    instead = _without_library(decisions.stages)
    schedule, bindings = scheduled(decisions)
    try:
        if target == "tp-overlap":
            return tp_overlap.generate(decisions), facts
        if target == "torch":
            called = [each.name for each in stages(schedule) if each.kind in PRODUCTS and each.name in instead]
            module = torch_wrapper.generate(schedule, called)
            return {f"{identifier(schedule.name)}.py": module}, facts | {"planned_ns": decisions.time_ns}
        if target == "nccl":
            stock = nccl.generate(schedule, bindings)
            facts |= {"without": list(stock.notes)} if stock.notes else planned
            return stock.texts, facts | ({"instead": instead} if instead else {})
        if target == "nccl-device":
            kernels = sum(stage.time_ns for stage in decisions.stages if stage.kind == "fused allreduce")
            return _device(schedule, bindings), facts | {"planned_ns": kernels}
        lowered = lowered_of(decisions, collectives)
    except InputError as error:
        raise InputError(f"{target}: {error}", where=plan_file) from error
    fallbacks = {" -> ".join(each.members): each.why for each in lowered.fallbacks}
    changed = {name: f"{each.ran} instead of {each.wanted}: {each.why}" for name, each in lowered.changed.items()}
    facts |= {"digest": lowered.digest, "choices": dict(lowered.ran)}
    facts |= {} if fallbacks or changed or collectives else planned
    changed |= instead
    facts |= {**({"in_turn": fallbacks} if fallbacks else {}), **({"instead": changed} if changed else {})}
    if collectives:
        facts["collectives"] = sorted(collectives)
    return {**files_of(lowered), **{name: store.dumps(plan) for name, plan in collectives.items()}}, facts


def _without_library(priced: Sequence[StageChoice]) -> dict[str, str]:
    """By product that a library would compute: what computes it where the target has no library."""
    return {
        stage.name: f"our own kernel instead of a library's, which is not called here: {stage.own_ns / 1000:,.1f} us "
        f"instead of {stage.time_ns / 1000:,.1f} us, predicted; --no-library plans for that"
        for stage in priced
        if stage.own_ns is not None
    }


def files_of(lowered: Lowered) -> dict[str, str]:
    """The file of a schedule, its tables and the headers that it needs."""
    text, tables = apart(lowered.text)
    return with_headers({MAIN: text, **({TABLES: tables} if tables else {})})


def collective_of(plan: Plan, name: str) -> CollectiveDecisions:
    """Raises InputError, which names the file, for a plan of another pass or one that its checker rejects."""
    decisions = require_pass(plan, CollectiveDecisions, name).decisions
    if findings := check(decisions):
        raise InputError(f"its check failed: {findings[0]}", where=name)
    return decisions


def scheduled(decisions: FusionDecisions) -> tuple[Program, Bindings]:
    """The schedule of a plan and what it is for."""
    bindings = Bindings(decisions.extents, decisions.ranks, decisions.groups, decisions.parts)
    return parse(decisions.schedule, "$.decisions.schedule"), bindings


def identifier(name: str) -> str:
    """A module name in Python."""
    return re.sub(r"\W", "_", name).lower()


def _device(schedule: Program, bindings: Bindings) -> dict[str, str]:
    """A file for every fused AllReduce, with the headers. Raises InputError without any."""
    made = nccl_device.generate(schedule, bindings)
    if not made:
        raise InputError("found no fused AllReduce, which is all that this target carries")
    return with_headers({f"{each.name}.cu": each.text for each in made})


def lowered_of(decisions: FusionDecisions, collectives: Mapping[str, Plan] | None = None) -> Lowered:
    """The kernels of the plan's schedule, each on its own choice of the plan or, where no kernel supports that, on a
    stand-in, which `changed` records. `collectives` are plans by file name that carry what they are for.

    Raises InputError for stages without a kernel, and collective plans that no stage can run.
    """
    schedule, bindings = scheduled(decisions)
    return lowered_as(schedule, bindings, decisions.stages, decisions.nodes, collectives)


def lowered_as(
    schedule: Program,
    bindings: Bindings,
    priced: Sequence[StageChoice],
    nodes: int,
    collectives: Mapping[str, Plan] | None = None,
) -> Lowered:
    """The kernels of a schedule, each as `priced`, on a machine of `nodes`. Raises as `lowered_of` does."""
    carried = [
        Carried(name, store.digest(plan), lower_collective(collective_of(plan, name)))
        for name, plan in sorted((collectives or {}).items())
    ]
    for each in carried:
        if len(each.program.ranks) != bindings.ranks:
            message = f"found a plan for {len(each.program.ranks)} ranks, expected one for {bindings.ranks}"
            raise InputError(message, where=each.file)
    per_node = min(-(-bindings.ranks * bindings.groups // nodes), bindings.ranks)
    return lower(schedule, bindings, choices=choices_of(stages(schedule), priced, per_node, carried))
