"""Every code generation target behind one function: plan in, texts and what the manifest says about them out.

A program that does not fit into the form of its target, or is beyond what the named runtime takes, is made again with
half of the instances, and so on; where only its threadblocks are too long for the runtime, with more channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, assert_never

import msgspec

from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.cuda import kernels
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.msccl.rules import FATAL, Finding, judge
from treadle.codegen.collective.msccl.runtimes import RUNTIMES, Name
from treadle.codegen.collective.msccl.subject import Subject
from treadle.codegen.collective.mscclpp import check as check_mscclpp
from treadle.codegen.collective.mscclpp import document
from treadle.codegen.collective.mscclpp import lower as mscclpp_json
from treadle.codegen.collective.program import Program
from treadle.codegen.collective.promise import promise_of
from treadle.codegen.collective.simulate_program import simulate_program
from treadle.codegen.collective.split import split_counts
from treadle.codegen.fusion.generate import generate as fusion_generate
from treadle.codegen.memory import torch_compile, torch_module, torch_sac
from treadle.codegen.swap import deepspeed, torch_offload, torch_swap
from treadle.planner.documents import store
from treadle.planner.documents.plan import Decisions, InputRef, Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.check import check as check_collective
from treadle.planner.passes.collective.collectives import DEMANDING
from treadle.planner.passes.fusion.check import check as check_fusion
from treadle.planner.passes.fusion.decisions import FusionDecisions
from treadle.planner.passes.memory.check import check as check_memory
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.problem import RESERVE
from treadle.planner.passes.swap.check import check as check_swap
from treadle.planner.passes.swap.decisions import SwapDecisions

Target = Literal[
    "torch", "torch-sac", "torch-compile", "torch-swap", "torch-offload", "deepspeed", "msccl-xml", "mscclpp-json",
    "cuda", "nccl-tuner", "nccl", "nccl-device", "tp-overlap",
]  # fmt: skip

MEMORY_TARGETS: tuple[Target, ...] = ("torch", "torch-sac", "torch-compile")
SWAP_TARGETS: tuple[Target, ...] = ("torch-swap", "torch-offload", "deepspeed")
COLLECTIVE_TARGETS: tuple[Target, ...] = ("msccl-xml", "mscclpp-json", "cuda")
FUSION_TARGETS: tuple[Target, ...] = ("cuda", "torch", "nccl", "nccl-device", "tp-overlap")
"""What a plan of each pass becomes, its default first; `nccl-tuner` is what a selection becomes."""

MAX_LANES = 32
"""Channels on which one instance may spread its chunks."""

PLAN_NAME = "plan.json"
"""The plan travels with what was made from it, so that a folder can be checked and predicted on its own."""


@dataclass(frozen=True)
class Artefacts:
    """Texts by relative path, and the fields of their manifest."""

    target: Target
    plan: InputRef
    files: dict[str, str]
    entry: str | None
    facts: dict[str, Any]


def generate(
    plan: Plan,
    plan_file: str,
    trace: Trace | None = None,
    target: Target | None = None,
    runtime: Name | None = None,
    collectives: Mapping[str, Plan] | None = None,
) -> Artefacts:
    """The artefacts of `plan`, which errors and the manifest call `plan_file`; a memory or swap plan needs its `trace`.

    `target` defaults to the first of the plan's pass. MSCCL XML is written for `runtime`; by default in the dialect of
    RCCL, whether or not RCCL takes so large a program. The collectives of a fusion plan run as plans in `collectives`,
    by file name, do theirs. Raises InputError when plan, target, runtime and trace do not go
    together or no number of instances fits, CheckFailed when what comes out would be wrong.
    """
    decisions = plan.decisions
    possible = possible_targets(decisions)
    chosen = target or possible[0]
    if chosen not in possible:
        raise InputError(f"found a plan for target {' or '.join(possible)}, expected one for {chosen}", where=plan_file)
    require_runtime(runtime, chosen, plan_file)
    if collectives and not (isinstance(decisions, FusionDecisions) and chosen == "cuda"):
        raise InputError("collective plans go into the kernels of a fusion plan only, target cuda", where=plan_file)
    if findings := check(decisions):
        raise CheckFailed(f"{plan_file}: not generated, its check failed", tuple(findings))
    match decisions:
        case CollectiveDecisions():
            files, facts, entry = *_collective(decisions, plan_file, chosen, runtime), None
        case SwapDecisions():
            files, facts, entry = _swap(plan, decisions, plan_file, chosen, trace)
        case FusionDecisions():
            files, facts, entry = *fusion_generate(decisions, plan_file, chosen, collectives or {}), None
        case MemoryDecisions():
            files, facts, entry = _memory(plan, decisions, plan_file, chosen, trace)
        case _:
            assert_never(decisions)
    return Artefacts(
        target=chosen,
        plan=InputRef(file=Path(plan_file).name, digest=store.digest(plan)),
        files={**files, PLAN_NAME: store.dumps(plan)},
        entry=entry,
        facts=facts,
    )


def possible_targets(decisions: Decisions) -> tuple[Target, ...]:
    """What a plan with these decisions can become, its default first."""
    match decisions:
        case CollectiveDecisions():
            return COLLECTIVE_TARGETS
        case SwapDecisions():
            return SWAP_TARGETS
        case FusionDecisions():
            return FUSION_TARGETS
        case MemoryDecisions():
            return MEMORY_TARGETS
        case _:
            assert_never(decisions)


def check(decisions: Decisions) -> list[str]:
    """What the checker of the pass finds."""
    match decisions:
        case CollectiveDecisions():
            return check_collective(decisions)
        case SwapDecisions():
            return check_swap(decisions)
        case FusionDecisions():
            return check_fusion(decisions)
        case MemoryDecisions():
            return check_memory(decisions)
        case _:
            assert_never(decisions)


def require_runtime(runtime: Name | None, target: Target, where: str) -> None:
    """Raises InputError for a runtime that does not exist or does not read what `target` writes."""
    if runtime is not None and runtime not in RUNTIMES:
        raise InputError(f"found runtime {runtime!r}, expected one of {', '.join(RUNTIMES)}", where=where)
    if runtime is not None and target != "msccl-xml":
        raise InputError(f"found target {target}, expected msccl-xml, which runtime {runtime} reads", where=where)


def _collective(
    decisions: CollectiveDecisions, plan_file: str, target: Target, runtime: Name | None
) -> tuple[dict[str, str], dict[str, Any]]:
    made = fitted(decisions, plan_file, target, runtime)
    facts = {
        "collective": decisions.collective,
        "ranks": decisions.ranks,
        "input_bytes": decisions.input_bytes,
        "planned_ns": decisions.makespan_ns,
        "simulated_ns": {
            f"{name}.xml": simulate_program(program, decisions).schedule.makespan
            for name, program in made.programs.items()
        },
        **({"runtime": runtime} if runtime else {}),
        **({"channels_of_instance": made.lanes} if made.lanes > 1 else {}),
        **({"instances": made.instances} if made.instances < decisions.instances else {}),
    }
    return made.texts, facts


@dataclass(frozen=True)
class Fitted:
    """Programs by name, the texts that they become, and the instances and channels of each that they have."""

    programs: dict[str, Program]
    texts: dict[str, str]
    instances: int
    lanes: int = 1


def fitted(
    decisions: CollectiveDecisions,
    plan_file: str,
    target: Target,
    runtime: Name | None = None,
    call_bytes: tuple[int, int] = (0, 0),
) -> Fitted:
    """The programs of `decisions` for calls of `call_bytes` (least and most, 0 for no limit), with as many of its
    instances as fit, halved each time. Raises InputError where even one is too many."""
    instances, lanes = decisions.instances, 1
    least, most = call_bytes
    while True:
        tried = msgspec.structs.replace(decisions, instances=instances)
        programs = {
            name: replace(program, min_bytes=least, max_bytes=most)
            for name, program in programs_of(tried, plan_file, lanes).items()
        }
        refused: Finding | None = None
        try:
            if runtime is None:
                return Fitted(programs, texts_of(programs, target, tried, plan_file), instances)
            texts = {}
            for name, program in programs.items():
                texts[f"{name}.xml"], refused = _xml(name, program, runtime, tried, plan_file)
                if refused is not None:
                    title = RUNTIMES[runtime].title
                    raise InputError(f"{name}.xml: {title} {refused.effect} it: {refused}", where=plan_file)
            return Fitted(programs, texts, instances, lanes)
        except InputError:
            if refused is not None and refused.rule == "steps-per-block" and lanes < MAX_LANES:
                lanes *= 2
            elif instances > 1:
                instances //= 2
            else:
                raise


def programs_of(decisions: CollectiveDecisions, plan_file: str, lanes: int = 1) -> dict[str, Program]:
    """By name: one program for calls out of place and, but for alltoall and irregular collectives, one for calls in
    place. Raises CheckFailed should one be wrong."""
    programs: dict[str, Program] = {decisions.collective: lower(decisions, lanes=lanes)}
    if decisions.collective != "alltoall" and decisions.collective not in DEMANDING:
        programs[f"{decisions.collective}_inplace"] = lower(decisions, inplace=True, lanes=lanes)
    for name, program in programs.items():
        _require_right(name, program, decisions, plan_file)
    return programs


def _require_right(name: str, program: Program, decisions: CollectiveDecisions, plan_file: str) -> None:
    if findings := check_program.check(program, promise=promise_of(decisions)):
        raise CheckFailed(
            f"{plan_file}: {name}.xml would be wrong; this is a bug, please report it",
            tuple(f"{name}.xml: {finding}" for finding in findings),
        )


def texts_of(
    programs: Mapping[str, Program], target: Target, decisions: CollectiveDecisions, plan_file: str
) -> dict[str, str]:
    """The files of checked programs in the form of `target`. Raises InputError where they do not fit into it."""
    if target == "cuda":
        return kernels.artefacts(dict(programs))
    if target == "mscclpp-json":
        return {f"{name}.json": _mscclpp(name, program, decisions, plan_file) for name, program in programs.items()}
    return {f"{name}.xml": xml.emit(program) for name, program in programs.items()}


def _xml(
    name: str, program: Program, runtime: Name, decisions: CollectiveDecisions, plan_file: str
) -> tuple[str, Finding | None]:
    """MSCCL XML in the dialect of `runtime`, and the first rule by which it would not take it."""
    split = split_counts(program, RUNTIMES[runtime].count)
    if split is not program:
        _require_right(name, split, decisions, plan_file)
    text = xml.emit(split, runtime)
    subject = Subject(text, xml.parse(text, f"{name}.xml"))
    return text, next((finding for finding in judge(subject, runtime) if finding.effect in FATAL), None)


def _mscclpp(name: str, program: Program, decisions: CollectiveDecisions, plan_file: str) -> str:
    try:
        made = mscclpp_json.emit(program, far=mscclpp_json.far_pairs(decisions))
    except InputError as error:
        raise InputError(f"{name}.json: {error}", where=plan_file) from error
    if findings := check_mscclpp.check(made, promise_of(decisions)):
        raise CheckFailed(
            f"{plan_file}: {name}.json would be wrong; this is a bug, please report it",
            tuple(f"{name}.json: {finding}" for finding in findings),
        )
    return document.dumps(made)


def _memory(
    plan: Plan, decisions: MemoryDecisions, plan_file: str, target: Target, trace: Trace | None
) -> tuple[dict[str, str], dict[str, Any], str | None]:
    trace = _traced(plan, plan_file, "memory", trace)
    reserve = decisions.problem.base.get(RESERVE, 0)
    facts = {
        "budget_bytes": decisions.problem.budget_bytes - reserve,
        **({"reserve_bytes": reserve} if reserve else {}),
        "planned_ns": decisions.objective_ns,
        "store_all_peak_bytes": decisions.store_all_peak_bytes - reserve,
        **({"autocast": trace.autocast} if trace.autocast else {}),
        **({"measured_on": trace.costs.device} if trace.costs.model == "measured" else {}),
    }
    if target == "torch-sac":
        files, chosen = torch_sac.generate(decisions, trace)
        facts |= {"planned_ns": chosen.predicted.time_ns, "predicted_bytes": chosen.predicted.peak_bytes - reserve}
        return files, facts, trace.entry
    if target == "torch-compile":
        files, split = torch_compile.generate(decisions, trace)
        facts |= {"planned_ns": split.predicted.time_ns, "predicted_bytes": split.predicted.peak_bytes - reserve}
        return files, facts, trace.entry
    facts["predicted_bytes"] = decisions.exact_peak_bytes - reserve
    return torch_module.generate(plan, trace), facts, trace.entry


def _swap(
    plan: Plan, decisions: SwapDecisions, plan_file: str, target: Target, trace: Trace | None
) -> tuple[dict[str, str], dict[str, Any], str | None]:
    trace = _traced(plan, plan_file, "swap", trace)
    facts: dict[str, Any] = {
        "memory_bytes": decisions.problem.machine.memory_bytes,
        "planned_ns": decisions.time_ns,
        "in_bytes": decisions.in_bytes,
        "out_bytes": decisions.out_bytes,
    }
    if target == "torch-swap":
        sizes = {"reserve_bytes": decisions.problem.reserve_bytes, "scratch_bytes": decisions.problem.scratch_bytes}
        return torch_swap.generate(plan, trace), facts | sizes, trace.entry
    if target == "deepspeed":
        files, offload = deepspeed.generate(decisions, trace)
        carried = {"parameters": offload.parameters._asdict(), "state": offload.state._asdict()}
        return files, {**facts, "carried": carried}, None
    files, moved = torch_offload.generate(decisions, trace)
    counts = {"moves": len(moved.moves), "bytes": moved.bytes, "planned_copies": moved.planned_copies}
    return files, {**facts, "carried": counts}, trace.entry


def _traced(plan: Plan, plan_file: str, kind: str, trace: Trace | None) -> Trace:
    """The trace of a plan. Raises InputError where there is none, or another one."""
    if trace is None:
        raise InputError(f"a {kind} plan becomes a module only with the trace it was made from; name it with --trace",
                         where=plan_file)  # fmt: skip
    reference = plan.inputs.get("trace")
    if reference is not None and store.digest(trace) != reference.digest:
        raise InputError(
            f"found trace {trace.name!r} with another digest than the trace {reference.file!r} the plan was made from; "
            "plan again",
            where=plan_file,
        )
    return trace
