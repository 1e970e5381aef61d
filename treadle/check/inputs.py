"""The documents that a plan was made from: found again, and compared with the digests it recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from treadle.codegen.targets import targets_of
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware, scaled
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import Document
from treadle.planner.documents.sources import find_input, input_beside
from treadle.planner.errors import InputError
from treadle.planner.machine.measured_network import hardware_in
from treadle.planner.passes import pass_of, rooms


def input_kinds() -> dict[str, type[Document]]:
    """The documents that plans are made from, by role, in the order of the passes; of several kinds the first."""
    found: dict[str, type[Document]] = {}
    for each in rooms():
        for role, kind in each.roles.items():
            found.setdefault(role, kind)
    return found


def inputs_of(
    plan: Plan, path: str, files: Mapping[str, str], fresh: bool, changed: bool = False
) -> tuple[list[str], dict[str, Document]]:
    """Findings on inputs of the plan at `path` that changed since, and the inputs by role: those of `files`, which are
    named by role, with `fresh` all of them, wherever they are found, with `changed` also those that did."""
    findings: list[str] = []
    found: dict[str, Document] = {}
    roles = pass_of(plan).roles
    for role, reference in sorted(plan.inputs.items()):
        if role not in roles or not (fresh or role in files):
            continue
        file = find_input(role, roles[role], reference, path, files.get(role))
        document = _loaded(file, roles[role])
        if isinstance(document, Hardware):
            document = _as_large(document, plan, reference)
        if store.digest(document) == reference.digest:
            found[role] = document
        else:
            if changed:
                found[role] = document
            findings.append(
                f"stale: {role} {file} is not the one the plan was made from ({reference.file}); plan again"
            )
    return findings, found


def missing(plan: Plan, path: str, files: Mapping[str, str]) -> list[str]:
    """The roles of inputs of the plan at `path` that are neither among `files`, which are named by role, nor found."""
    absent, roles = [], pass_of(plan).roles
    for role, reference in sorted(plan.inputs.items()):
        try:
            find_input(role, roles.get(role, Document), reference, path, files.get(role))
        except InputError:
            absent.append(role)
    return absent


def inputs_beside(plan: Plan, path: str) -> dict[str, str]:
    """The unchanged files that a plan at `path` was made from, by their names next to it, if they are copied with the
    the artefacts. Files that ship with the tool need no copy."""
    found: dict[str, str] = {}
    if not targets_of(plan).carries_inputs:
        return found
    for role, reference in sorted(plan.inputs.items()):
        file = Path(input_beside(path, reference))
        if file.is_file():
            document = _loaded(file, pass_of(plan).roles[role])
            if isinstance(document, Hardware):
                document = _as_large(document, plan, reference)
            if store.digest(document) == reference.digest:
                found[Path(reference.file).name] = store.read_text(file)
    return found


def _loaded(file: Path | str, kind: type[Document]) -> Document:
    """A profile may be that of probed hosts."""
    return hardware_in(file) if kind is Hardware else store.load(file, kind)


def _as_large(hardware: Hardware, plan: Plan, reference: InputRef) -> Hardware:
    """The profile with the plan's number of nodes, where that is what the plan was made from (`--nodes`)."""
    if store.digest(hardware) == reference.digest:
        return hardware
    nodes = pass_of(plan).nodes(plan.decisions, hardware)
    if nodes is None:
        return hardware
    if nodes < 1 or (nodes > 1 and hardware.network is None) or hardware.other_nodes:
        return hardware
    other = scaled(hardware, nodes)
    return other if store.digest(other) == reference.digest else hardware
