"""A selection becomes artefacts: its programs with the byte ranges in which a runtime may take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from codegen import nccl_tuner
from codegen.targets import COLLECTIVE_TARGETS, Artefacts, Target, programs_of, texts_of
from planner import documents
from planner.collective.algorithm import CollectiveDecisions
from planner.collective.check import check
from planner.errors import CheckFailed, InputError
from planner.plan import InputRef, Plan
from planner.selection import FILE_NAME, Entry, Selection

SELECTION_TARGETS: tuple[Target, ...] = (*COLLECTIVE_TARGETS, "nccl-tuner")


def generate_selection(
    selection: Selection, selection_file: str, plans: Mapping[str, Plan], target: Target | None = None
) -> Artefacts:
    """The artefacts of `selection`, whose `plans` are given by file name.

    MSCCL XML comes as one flat folder whose files stand in the order of the sizes, since runtimes take the first that
    fits; other programs get a folder for each range. Raises InputError for a target that is none of a selection's or
    a plan of another collective; CheckFailed when a plan or what comes out would be wrong.
    """
    chosen = target or SELECTION_TARGETS[0]
    if chosen not in SELECTION_TARGETS:
        raise InputError(
            f"found a selection for target {' or '.join(SELECTION_TARGETS)}, expected one for {chosen}",
            where=selection_file,
        )
    for name, plan in plans.items():
        decisions = plan.decisions
        if not isinstance(decisions, CollectiveDecisions):
            raise InputError("found a memory plan, expected a collective plan", where=name)
        if (decisions.collective, decisions.ranks) != (selection.collective, selection.ranks):
            raise InputError(f"found {decisions.collective} of {decisions.ranks} ranks, expected {selection.name}",
                             where=name)  # fmt: skip
        if findings := check(decisions):
            raise CheckFailed(f"{name}: not generated, its check failed", tuple(findings))
    files = {nccl_tuner.FILE_NAME: nccl_tuner.emit(selection)} if chosen == "nccl-tuner" else {}
    fewer: dict[str, int] = {}
    left_out: dict[str, str] = {}
    for number, entry in enumerate(selection.entries if chosen != "nccl-tuner" else ()):
        decisions = plans[entry.plan.file].decisions
        assert isinstance(decisions, CollectiveDecisions)
        place = f"{number:02d}"
        try:
            made, instances = _programs(selection, entry, decisions, chosen)
        except InputError as error:
            left_out[place] = str(error)
            continue
        if instances < entry.instances:
            fewer[place] = instances
        mark = "-" if chosen == "msccl-xml" else "/"
        files |= {f"{place}{mark}{name}": text for name, text in made.items()}
    if not files:
        raise InputError(f"no range fits into {chosen}: {next(iter(left_out.values()))}", where=selection_file)
    kept = {FILE_NAME: documents.dumps(selection), **{name: documents.dumps(plan) for name, plan in plans.items()}}
    return Artefacts(
        target=chosen,
        plan=InputRef(file=Path(selection_file).name, digest=documents.digest(selection)),
        files={**files, **kept},
        entry=None,
        facts={
            "collective": selection.collective,
            "ranks": selection.ranks,
            "ranges": len(selection.entries),
            **({"fewer_instances": fewer} if fewer else {}),
            **({"left_out": left_out} if left_out else {}),
        },
    )


def _programs(
    selection: Selection, entry: Entry, decisions: CollectiveDecisions, target: Target
) -> tuple[dict[str, str], int]:
    """The texts of one range, and the instances they have: half of the entry's where the form of the target is too
    small for all, and so on. Raises InputError where even one is too many."""
    low, high = nccl_tuner.call_bytes(selection, entry)
    instances = entry.instances
    while True:
        tried = msgspec.structs.replace(decisions, protocol=entry.protocol, instances=instances)
        programs = programs_of(tried, entry.plan.file)
        ranged = {name: replace(program, min_bytes=low, max_bytes=high) for name, program in programs.items()}
        try:
            return texts_of(ranged, target, tried, entry.plan.file), instances
        except InputError:
            if instances == 1:
                raise
            instances //= 2
