"""The programs of collective plans in the form of a target, with as many instances as fit into it.

A program that does not fit, or is beyond what the named runtime takes, is lowered again with half of the instances, and
so on; where only its threadblocks are too long for the runtime, with more channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.cuda import kernels
from treadle.codegen.collective.expected import expected_outputs
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.msccl.rules import FATAL, Finding, judge
from treadle.codegen.collective.msccl.runtimes import RUNTIMES, Name
from treadle.codegen.collective.msccl.subject import Subject
from treadle.codegen.collective.mscclpp import check as check_mscclpp
from treadle.codegen.collective.mscclpp import document, in_switch
from treadle.codegen.collective.mscclpp import lower as mscclpp_json
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.collective.split import split_counts
from treadle.codegen.collective.switched import require_messages
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.collectives import DEMANDING
from treadle.planner.passes.collective.direct import is_in_switch

MAX_LANES = 32
"""Channels on which one instance may spread its chunks."""


@dataclass(frozen=True)
class Fitted:
    """Programs by name, the texts that they become, and the instances and channels of each that they have."""

    programs: dict[str, CollectiveProgram]
    texts: dict[str, str]
    instances: int
    lanes: int = 1


def fitted(
    decisions: CollectiveDecisions,
    plan_file: str,
    target: str,
    runtime: Name | None = None,
    call_bytes: tuple[int, int] = (0, 0),
) -> Fitted:
    """The programs of `decisions` for calls of `call_bytes` (least and most, 0 for no limit), with as many of its
    instances as fit, halved each time; none for what switches do. Raises InputError where even one is too many,
    and for what switches do in the form of another target than mscclpp-json and cuda."""
    if decisions.switched:
        if target == "cuda" and is_in_switch(decisions):
            return Fitted({}, kernels.symmetric(), 1)
        if target != "mscclpp-json":
            require_messages(decisions, plan_file)
        return Fitted({}, _in_switch(decisions, plan_file, call_bytes), 1)
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


def programs_of(decisions: CollectiveDecisions, plan_file: str, lanes: int = 1) -> dict[str, CollectiveProgram]:
    """By name: one program for calls out of place and, but for alltoall and irregular collectives, one for calls in
    place. Raises CheckFailed should one be wrong."""
    programs: dict[str, CollectiveProgram] = {decisions.collective: lower(decisions, lanes=lanes)}
    if decisions.collective != "alltoall" and decisions.collective not in DEMANDING:
        programs[f"{decisions.collective}_inplace"] = lower(decisions, inplace=True, lanes=lanes)
    for name, program in programs.items():
        _require_right(name, program, decisions, plan_file)
    return programs


def _require_right(name: str, program: CollectiveProgram, decisions: CollectiveDecisions, plan_file: str) -> None:
    if findings := check_program.check(program, expected=expected_outputs(decisions)):
        raise CheckFailed(
            f"{plan_file}: {name}.xml would be wrong; this is a bug, please report it",
            tuple(f"{name}.xml: {finding}" for finding in findings),
        )


def texts_of(
    programs: Mapping[str, CollectiveProgram], target: str, decisions: CollectiveDecisions, plan_file: str
) -> dict[str, str]:
    """The files of checked programs in the form of `target`. Raises InputError where they do not fit into it."""
    if target == "cuda":
        return kernels.artefacts(dict(programs))
    if target == "mscclpp-json":
        return {f"{name}.json": _mscclpp(name, program, decisions, plan_file) for name, program in programs.items()}
    return {f"{name}.xml": xml.emit(program) for name, program in programs.items()}


def _xml(
    name: str, program: CollectiveProgram, runtime: Name, decisions: CollectiveDecisions, plan_file: str
) -> tuple[str, Finding | None]:
    """MSCCL XML in the dialect of `runtime`, and the first rule by which it would not take it."""
    split = split_counts(program, RUNTIMES[runtime].count)
    if split is not program:
        _require_right(name, split, decisions, plan_file)
    text = xml.emit(split, runtime)
    subject = Subject(text, xml.parse(text, f"{name}.xml"))
    return text, next((finding for finding in judge(subject, runtime) if finding.effect in FATAL), None)


def _mscclpp(name: str, program: CollectiveProgram, decisions: CollectiveDecisions, plan_file: str) -> str:
    try:
        made = mscclpp_json.emit(program, far=mscclpp_json.far_pairs(decisions))
    except InputError as error:
        raise InputError(f"{name}.json: {error}", where=plan_file) from error
    return _right(name, made, decisions, plan_file)


def _in_switch(decisions: CollectiveDecisions, plan_file: str, call_bytes: tuple[int, int]) -> dict[str, str]:
    texts = {}
    for inplace in (False, True):
        name = decisions.collective + "_inplace" * inplace
        try:
            made = in_switch.emit(decisions, inplace=inplace, call_bytes=call_bytes)
        except InputError as error:
            raise InputError(f"{name}.json: {error}", where=plan_file) from error
        texts[f"{name}.json"] = _right(name, made, decisions, plan_file)
    return texts


def _right(name: str, made: document.ExecutionPlan, decisions: CollectiveDecisions, plan_file: str) -> str:
    """The text of a plan that passes its check."""
    if findings := check_mscclpp.check(made, expected_outputs(decisions)):
        raise CheckFailed(
            f"{plan_file}: {name}.json would be wrong; this is a bug, please report it",
            tuple(f"{name}.json: {finding}" for finding in findings),
        )
    return document.dumps(made)
