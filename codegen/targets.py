"""Every code generation target behind one function: plan in, texts and what the manifest says about them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from treadle.codegen.interface import AnyTargets, D, GenerationRequest, Target, Targets
from treadle.planner.documents import store
from treadle.planner.documents.nearest import meant, with_article
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes import ROOMS, name_of, pass_of

PLAN_NAME = "plan.json"
"""The plan is copied with what was made from it, so that a folder can be checked and predicted on its own."""


@dataclass(frozen=True)
class Artefacts:
    """Texts by relative path, and the fields of their manifest."""

    target: str
    plan: InputRef
    files: dict[str, str]
    entry: str | None
    facts: dict[str, Any]


@cache
def targets_for(name: str) -> AnyTargets:
    """Code generation of the pass `name`."""
    return cast(AnyTargets, import_module(f"treadle.codegen.{name}.room").ROOM)


def targets_of(plan: Plan[D]) -> Targets[D]:
    """Code generation of the pass that made `plan`."""
    return targets_for(name_of(plan.decisions))


def target_names() -> tuple[str, ...]:
    """The names of all targets, those of a pass together."""
    return tuple(dict.fromkeys(each for name in ROOMS for each in target_names_of(name)))


def passes_with(target: str) -> list[str]:
    """The passes whose plans or selections can become `target`, in the order of the list."""
    return [name for name in ROOMS if target in target_names_of(name)]


def target_names_of(name: str) -> tuple[str, ...]:
    """The names of the targets of the pass `name`, for plans and for selections."""
    made_by = targets_for(name)
    return tuple(each.name for each in (*made_by.targets, *made_by.selection_targets))


def chosen(offered: tuple[Target, ...], asked: str | None, what: str, where: str) -> Target:
    """The target that is asked for, by default the first. Raises InputError where it is not among those offered."""
    for target in offered:
        if asked in (None, target.name):
            return target
    *names, last = (target.name for target in offered)
    listed = f"{', '.join(names)} or {last}" if names else last
    takers = [f"{name} plans" for name in ROOMS if asked in [each.name for each in targets_for(name).targets]]
    takers += [f"selections of {name} plans" for name in ROOMS if not takers and asked in target_names_of(name)]
    other = f", which is for {' and '.join(takers)}" if takers else ""
    raise InputError(f"{with_article(what)} has no target {asked}{other}; expected --target {listed}", where=where)


def generate(
    plan: Plan,
    plan_file: str,
    trace: Trace | None = None,
    target: str | None = None,
    runtime: str | None = None,
    collectives: Mapping[str, Plan] | None = None,
) -> Artefacts:
    """The artefacts of `plan`, which errors and the manifest call `plan_file`; a memory or swap plan needs its `trace`.

    `target` defaults to the first of the plan's pass. MSCCL XML is written for `runtime`; by default in the dialect of
    RCCL, whether or not RCCL takes so large a program. The collectives of a fusion plan run as the plans in
    `collectives`, by file name. Raises InputError when plan, target, runtime and trace do not match or no number of
    instances fits, CheckFailed when the result would be wrong.
    """
    made_by = targets_of(plan)
    wanted = chosen(made_by.targets, target, f"{name_of(plan.decisions)} plan", plan_file)
    require_runtime(runtime, wanted, plan_file)
    if collectives and not wanted.carries:
        raise InputError("collective plans go into the kernels of a fusion plan only, target cuda", where=plan_file)
    if findings := pass_of(plan).findings(plan.decisions):
        raise CheckFailed(f"{plan_file}: not generated, its check failed", tuple(findings))
    if made_by.needs_trace:
        require_trace(plan, plan_file, trace)
    made = made_by.generate(plan, GenerationRequest(wanted, plan_file, trace, runtime, collectives or {}))
    return Artefacts(
        target=wanted.name,
        plan=InputRef(file=Path(plan_file).name, digest=store.digest(plan)),
        files={**made.files, PLAN_NAME: store.dumps(plan)},
        entry=made.entry,
        facts=made.facts,
    )


def require_runtime(runtime: str | None, target: Target, where: str) -> None:
    """Raises InputError for a runtime that does not exist or does not read what `target` writes."""
    from treadle.codegen.collective.msccl.runtimes import RUNTIMES

    if runtime is not None and runtime not in RUNTIMES:
        raise InputError(f"found runtime {runtime!r}, {meant(runtime, RUNTIMES)}", where=where)
    if runtime is not None and not target.runtimes:
        raise InputError(f"found target {target.name}, expected msccl-xml, which runtime {runtime} reads", where=where)


def require_trace(plan: Plan[Any], plan_file: str, trace: Trace | None) -> None:
    """Raises InputError where there is no trace, or another one than the plan was made from."""
    if trace is None:
        kind = name_of(plan.decisions)
        raise InputError(f"a {kind} plan becomes a module only with the trace it was made from; name it with --trace",
                         where=plan_file)  # fmt: skip
    reference = plan.inputs.get("trace")
    if reference is not None and store.digest(trace) != reference.digest:
        raise InputError(
            f"found trace {trace.name!r} with another digest than the trace {reference.file!r} the plan was made from; "
            "plan again",
            where=plan_file,
        )
