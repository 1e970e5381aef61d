"""A selection becomes artefacts: its programs with the byte ranges in which a runtime may take them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from treadle.codegen.collective import nccl_tuner
from treadle.codegen.collective.fitting import fitted
from treadle.codegen.collective.msccl.runtimes import Name
from treadle.codegen.collective.room import ROOM
from treadle.codegen.targets import Artefacts, chosen, require_runtime
from treadle.planner.documents import store
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.selection import FILE_NAME, Selection, other_methods
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.check import check


def generate_selection(
    selection: Selection,
    selection_file: str,
    plans: Mapping[str, Plan[CollectiveDecisions]],
    target: str | None = None,
    runtime: Name | None = None,
) -> Artefacts:
    """The artefacts of `selection`, whose `plans` are given by file name.

    MSCCL XML comes as one flat folder whose files stand in the order of the sizes, since runtimes take the first that
    fits; other programs get a folder for each range. A range that does not fit, even with one instance, is left out.
    `runtime` as in `targets.generate`. Raises InputError for a target that is none of a selection's, a plan of another
    collective, or where nothing fits; CheckFailed when a plan or what comes out would be wrong.
    """
    wanted = chosen(ROOM.selection_targets, target, "selection", selection_file)
    require_runtime(runtime, wanted, selection_file)
    for name, plan in plans.items():
        decisions = plan.decisions
        if (decisions.collective, decisions.ranks) != (selection.collective, selection.ranks):
            raise InputError(f"found {decisions.collective} of {decisions.ranks} ranks, expected {selection.name}",
                             where=name)  # fmt: skip
        if findings := check(decisions):
            raise CheckFailed(f"{name}: not generated, its check failed", tuple(findings))
    if findings := list(other_methods(selection, plans)):
        raise CheckFailed("the selection was not generated: it contradicts its plans", tuple(findings))
    files = {nccl_tuner.FILE_NAME: nccl_tuner.emit(selection)} if wanted.name == "nccl-tuner" else {}
    fewer: dict[str, int] = {}
    left_out: dict[str, str] = {}
    for number, entry in enumerate(selection.entries if wanted.name != "nccl-tuner" else ()):
        decisions = plans[entry.plan.file].decisions
        place = f"{number:02d}"
        try:
            asked = msgspec.structs.replace(decisions, protocol=entry.protocol, instances=entry.instances)
            span = nccl_tuner.call_bytes(selection, entry.min_bytes, entry.max_bytes)
            made = fitted(asked, entry.plan.file, wanted.name, runtime, span)
        except InputError as error:
            left_out[place] = str(error)
            continue
        if made.instances < entry.instances:
            fewer[place] = made.instances
        mark = "-" if wanted.name == "msccl-xml" else "/"
        files |= {f"{place}{mark}{name}": text for name, text in made.texts.items()}
    if not files:
        raise InputError(f"no range fits into {wanted.name}: {next(iter(left_out.values()))}", where=selection_file)
    kept = {FILE_NAME: store.dumps(selection), **{name: store.dumps(plan) for name, plan in plans.items()}}
    return Artefacts(
        target=wanted.name,
        plan=InputRef(file=Path(selection_file).name, digest=store.digest(selection)),
        files={**files, **kept},
        entry=None,
        facts={
            "collective": selection.collective,
            "ranks": selection.ranks,
            "ranges": len(selection.entries),
            **({"runtime": runtime} if runtime else {}),
            **({"fewer_instances": fewer} if fewer else {}),
            **({"left_out": left_out} if left_out else {}),
        },
    )
